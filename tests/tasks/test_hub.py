"""Datasets from a hub: a small server that speaks the hub's API, and all the ways in which there is none."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pyarrow
import pyarrow.parquet as parquet
import pytest

from swe_rl import cli
from swe_rl.tasks.load import load_tasks
from swe_rl.tasks.splits import files_of_split

COMMIT = "a" * 40
SCRIPT = Path(__file__).resolve().parents[2] / "data" / "preprocess_swe_dataset.py"


class Hub(BaseHTTPRequestHandler):
    """Listing and download of one dataset, `own/set`, with the headers that huggingface_hub looks at."""

    files: dict[str, bytes] = {}  # noqa: RUF012

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.split("?")[0]
        if path.startswith("/api/datasets/own/set/tree/main"):
            tree = [
                {"type": "file", "path": name, "oid": "b" * 40, "size": len(data)} for name, data in self.files.items()
            ]
            self._answer(200, json.dumps(tree).encode(), "application/json")
        elif path.startswith("/api/datasets/own/set/revision") or path == "/api/datasets/own/set":
            self._answer(200, json.dumps({"id": "own/set", "sha": COMMIT, "siblings": []}).encode(), "application/json")
        elif path.startswith("/datasets/own/set/resolve/"):
            data = self.files.get(path.split("/", 6)[6])
            self._answer(200 if data is not None else 404, data or b"", "application/octet-stream")
        else:
            self._answer(404, b'{"error": "Repository not found"}', "application/json")

    def _answer(self, status: int, data: bytes, kind: str) -> None:
        self.send_response(status)
        headers = {
            "Content-Type": kind,
            "Content-Length": len(data),
            "ETag": f'"{sha256(data).hexdigest()}"',
            "X-Repo-Commit": COMMIT,
        }
        if status == 404:
            headers["X-Error-Code"] = "RepoNotFound"
        for name, value in headers.items():
            self.send_header(name, str(value))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hub(tmp_path: Path, cases: Path) -> Iterator[str]:
    """The URL of a hub with two splits: `test` in two Parquet files, `dev` in JSON lines."""
    rows = [json.loads(line) for line in (cases / "swebench_lite_80.jsonl").read_text("utf-8").splitlines()[:7]]
    for number, part in enumerate((rows[:3], rows[3:5])):
        path = tmp_path / f"{number}.parquet"
        parquet.write_table(pyarrow.Table.from_pylist(part), path)
        Hub.files[f"data/test-0000{number}-of-00002.parquet"] = path.read_bytes()
    Hub.files["data/dev.jsonl"] = "".join(json.dumps(row) + "\n" for row in rows[5:]).encode()
    Hub.files["README.md"] = b"# set"
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def convert(tmp_path: Path, endpoint: str, *arguments: str, offline: str = "0") -> subprocess.CompletedProcess[str]:
    command = ["-m", "swe_rl", "data", "convert", "--output", str(tmp_path / "out.jsonl"), *arguments]
    return python(tmp_path, endpoint, *command, offline=offline)


def python(tmp_path: Path, endpoint: str, *command: str, offline: str = "0") -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "HF_ENDPOINT": endpoint,
        "HF_HUB_OFFLINE": offline,
        "HF_HOME": str(tmp_path / "home"),
        "HOME": str(tmp_path),
    }
    call = [sys.executable, *command]
    return subprocess.run(call, env=environment, capture_output=True, text=True, timeout=120, check=False)


def test_splits_of_a_dataset_on_a_hub(hub: str, tmp_path: Path) -> None:
    done = convert(tmp_path, hub, "--dataset", "own/set", "--split", "test")
    assert done.returncode == 0, done.stderr
    assert "5 tasks written" in done.stdout and len(load_tasks(tmp_path / "out.jsonl").tasks) == 5
    assert "2 tasks written" in convert(tmp_path, hub, "--dataset", "own/set", "--split", "dev").stdout
    missing = convert(tmp_path, hub, "--dataset", "own/set")
    assert (
        missing.returncode == 1 and "no file for split 'train' (--split); its data files: data/test-0" in missing.stderr
    )
    unknown = convert(tmp_path, hub, "--dataset", "own/other")
    assert unknown.returncode == 1 and "'own/other' cannot be had from " + hub in unknown.stderr


def test_the_script_of_the_field_takes_its_own_flags(hub: str, tmp_path: Path, cases: Path) -> None:
    call = (str(SCRIPT), "--train-data-source", "own/set", "--train-split", "test", "--output-dir", "~/d")
    done = python(tmp_path, hub, *call)
    assert done.returncode == 0 and f"{tmp_path}/d/train.jsonl: 5 tasks" in done.stdout, done.stderr
    rows = [json.loads(line) for line in (tmp_path / "d" / "train.jsonl").read_text("utf-8").splitlines()]
    assert all(row["text"] and row["metadata"]["data_source"] == "own/set" for row in rows)
    done = python(tmp_path, hub, *call, "--train-config", "default", "--max-samples", "2", "--output-name", "v.jsonl")
    assert done.returncode == 0 and len((tmp_path / "d" / "v.jsonl").read_text("utf-8").splitlines()) == 2
    none = python(tmp_path, hub, *call, "--train-config", "other")
    assert none.returncode == 1 and "no file for split 'test' of configuration 'other'" in none.stderr
    local = str(cases / "swegym_3.jsonl")
    done = python(tmp_path, hub, str(SCRIPT), "--train-data-source", local, "--output-dir", str(tmp_path / "local"))
    assert done.returncode == 0 and "3 tasks written" in done.stdout, done.stderr
    row = json.loads((tmp_path / "local" / "train.jsonl").read_text("utf-8").splitlines()[0])
    assert row["metadata"]["data_source"] == local


def test_no_hub_is_said_with_the_remedy(tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{unused.getsockname()[1]}"
        for offline, words in (("0", endpoint), ("1", "HF_HUB_OFFLINE is set")):
            done = convert(tmp_path, endpoint, "--dataset", "own/set", offline=offline)
            assert done.returncode == 1 and words in done.stderr and "(--input)" in done.stderr, done.stderr
            assert "Traceback" not in done.stderr and not (tmp_path / "out.jsonl").exists()


def test_a_split_of_a_folder(tmp_path: Path, cases: Path) -> None:
    rows = (cases / "swebench_lite_80.jsonl").read_text("utf-8").splitlines(keepends=True)
    for number, name in enumerate(("train", "test")):
        folder = tmp_path / "set" / "data"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}-00000-of-00001.jsonl").write_text("".join(rows[3 * number : 3 * number + 2 + number]))
    call = ["data", "convert", "--input", str(tmp_path / "set"), "-o", str(tmp_path / "out.jsonl")]
    for arguments, expected in (([], 5), (["--split", "test"], 3), (["--train-split", "train"], 2)):
        assert cli.main([*call, *arguments]) == 0
        assert len(load_tasks(tmp_path / "out.jsonl").tasks) == expected
    assert cli.main([*call, "--split", "dev"]) == 1


def test_the_only_file_of_a_configuration_is_one_split_of_many() -> None:
    files = ["a/train.parquet", "b/train.parquet", "b/test.parquet"]
    assert files_of_split(files, "test", "a") == []
    assert files_of_split(files, "test", "b") == ["b/test.parquet"]


@pytest.mark.parametrize(
    ("files", "split", "expected"),
    [
        (
            ["data/train-00001-of-00002.parquet", "data/train-00000-of-00002.parquet", "data/test.parquet"],
            "train",
            [1, 0],
        ),
        (["default/test/0000.parquet", "default/train/0000.parquet"], "test", [0]),
        (["swe_train.jsonl", "swe_training.jsonl", "README.md"], "train", [0]),
        (["tasks.jsonl", "README.md"], "train", [0]),
        (["a.jsonl", "b.jsonl"], "train", []),
        (["README.md"], "train", []),
    ],
)
def test_which_files_a_split_has(files: list[str], split: str, expected: list[int]) -> None:
    assert files_of_split(files, split) == [files[number] for number in expected]
