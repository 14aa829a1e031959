"""Run an unmodified SGLang server, with or without a GPU: `python serve.py FLAGS` inside SGLang's own environment.

It adds two things to `python -m sglang.launch_server`: import stand-ins where SWE_RL_SGLANG_CPU=1 (SGLang's child
processes re-import this file and so get them too), and an end: when stdin closes, because whoever started the server is
gone, the whole process group ends, so that no orphan keeps memory of a GPU.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

if os.environ.get("SWE_RL_SGLANG_CPU") == "1":
    import standins

    os.environ.setdefault("SGLANG_USE_CPU_ENGINE", "1")
    standins.install()

TERM_SECONDS = 15.0  # between asking the group to end and ending it


def end_group_with_stdin() -> None:
    """Block until stdin is closed, then end this process group. The server must lead a group of its own."""
    while os.read(0, 4096):
        continue
    os.killpg(0, signal.SIGTERM)
    time.sleep(TERM_SECONDS)
    os.killpg(0, signal.SIGKILL)


def main() -> None:
    from sglang.launch_server import run_server
    from sglang.srt.server_args import prepare_server_args
    from sglang.srt.utils import kill_process_tree

    if os.environ.get("SWE_RL_END_WITH_STDIN") == "1" and os.getpgrp() == os.getpid():
        threading.Thread(target=end_group_with_stdin, name="stdin-watch", daemon=True).start()
    try:
        run_server(prepare_server_args(sys.argv[1:]))
    finally:
        kill_process_tree(os.getpid(), include_parent=False)


if __name__ == "__main__":
    main()
