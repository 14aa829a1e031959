"""A repository with a bug as a task file, an untrained tiny policy, and the command that trains it: all real, all small."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from swe_rl.policy.model import new_policy, tiny_config
from swe_rl.policy.tokenizer import train_tokenizer
from swe_rl.tasks.load import write_tasks
from swe_rl.types import Task

TEST_PATCH = """diff --git a/tests/test_calc.py b/tests/test_calc.py
new file mode 100644
--- /dev/null
+++ b/tests/test_calc.py
@@ -0,0 +1,5 @@
+from calc import add
+
+
+def test_add():
+    assert add(2, 3) == 5
"""


@dataclass
class Lab:
    """A folder with policy and tasks; `command` gives the argv of a short training run in it."""

    folder: Path
    env: dict[str, str]

    def command(self, *flags: str, config: bool = True) -> list[str]:
        settings = ["--config", str(self.folder / "run.yaml")] if config else []
        return [sys.executable, "-m", "swe_rl", "train", *settings, *flags]

    def run(self, *flags: str, timeout: float = 400) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*flags),
            capture_output=True,
            text=True,
            timeout=timeout,
            env=self.env,
            stdin=subprocess.DEVNULL,
        )


def git(folder: Path, *words: str) -> None:
    identity = {f"GIT_{who}_{what}": "x@example.org" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    subprocess.run(["git", *words], cwd=folder, check=True, capture_output=True, env={**os.environ, **identity})


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    folder = tmp_path_factory.mktemp("lab")
    repository = folder / "repo"
    repository.mkdir()
    (repository / "calc.py").write_text("def add(a, b):\n    return a - b\n")
    git(repository, "init", "-q", "-b", "main")
    git(repository, "add", ".")
    git(repository, "commit", "-q", "-m", "base")
    head = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=repository, capture_output=True, text=True, check=True
    ).stdout.strip()
    archive = folder / "repo.tar"
    subprocess.run(["tar", "-cf", archive, "-C", repository, "."], check=True)
    tasks = [
        Task(
            instance_id=f"calc-{i}",
            problem_statement=f"add(2, 3) gives {-1 - i}.",
            repo="calc",
            base_commit=head,
            archive=str(archive),
            eval_script="python -m pytest -rA tests/test_calc.py",
            test_patch=TEST_PATCH,
            test_files=["tests/test_calc.py"],
            fail_to_pass=["tests/test_calc.py::test_add"],
            log_parser="junit",
            certified=True,
            flaky=False,
            metadata={"level": f"L{1 + i % 2}"},
        )
        for i in range(4)
    ]
    write_tasks(folder / "train.jsonl", tasks)
    with (folder / "train.jsonl").open("a") as file:
        file.write("{a row that is no task\n")
    write_tasks(folder / "heldout.jsonl", tasks[:2])
    tokenizer = train_tokenizer(["def add(a, b):\n    return a - b\n```bash\ncat calc.py\n```"] * 4, vocab_size=320)
    policy = folder / "policy"
    new_policy(tiny_config(tokenizer, hidden=256, layers=2, mlp=96), seed=1).save_pretrained(policy)
    tokenizer.save_pretrained(policy)
    (folder / "run.yaml").write_text(
        f"""
hf_checkpoint: {policy}
prompt_data: {folder}/train.jsonl
eval_prompt_data: {folder}/heldout.jsonl
num_rollout: 3
rollout_batch_size: 2
n_samples_per_prompt: 4
rollout_max_context_len: 384
rollout_max_response_len: 24
swe_agent_config: quickstart
step_limit: 2
swe_rollout_timeout: 60
swe_eval_timeout: 20
swe_command_timeout: 5
save_interval: 1
eval_attempts: 4
lr: 1.0e-4
progress: plain
custom_rm_path: tests.whole_run.rewards.by_index
"""
    )
    root = Path(__file__).resolve().parents[2]
    env = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    for name in list(env):
        if name.startswith(("SWE_", "EXPORT_ROOT", "RUN_TIMESTAMP")):
            del env[name]
    return Lab(folder, env)
