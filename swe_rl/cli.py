"""The `swe-rl` command: a table of subcommands, each a `main(argv) -> int` that is imported only when it is called."""

from __future__ import annotations

import importlib
import os
import sys

from swe_rl.errors import SweRlError, UsageError

# command: (module with main(argv) -> int, one line of help)
COMMANDS: dict[str, tuple[str, str]] = {
    "train": ("swe_rl.train_command", "train a policy on tasks (GRPO)"),
    "eval": ("swe_rl.evaluate.command", "evaluate a checkpoint or an endpoint on tasks"),
    "sft": ("swe_rl.trainer.sft", "warm-start a policy on demonstration trajectories"),
    "engine": ("swe_rl.engine.embedded.server", "serve a policy on the CPU (SGLang's /generate)"),
    "data inspect": ("swe_rl.tasks.inspect", "count and check a dataset"),
    "data convert": ("swe_rl.tasks.convert", "write any dataset form into ours"),
    "data certify": ("swe_rl.tasks.certify", "run gold and empty patches; find flaky and broken tasks"),
    "data synth": ("swe_rl.tasks.synth.command", "make tasks from a pytest repository by injecting bugs"),
    "data eval-script": ("swe_rl.tasks.eval_script", "print the eval script of a task"),
    "data demos": ("swe_rl.tasks.demos", "execute demonstrations of tasks and keep their trajectories"),
    "grade-log": ("swe_rl.grading.grade_log", "a report from a test log alone"),
    "regrade": ("swe_rl.grading.regrade", "grade the stored patches of a run again and compare"),
    "replay": ("swe_rl.agent.replay", "run a stored trajectory's commands again; report the first difference"),
    "exec-server": ("swe_rl.sandbox.exec_server", "HTTP server in front of this machine's container engine"),
    "pool-server": ("swe_rl.sandbox.pool_server", "leases of sandboxes over a row of exec servers"),
    "nodes": ("swe_rl.sandbox.nodes", "set up, watch, fill and clean exec nodes over ssh"),
}

HELP = ("-h", "--help", "help")


def usage(group: str = "") -> str:
    """The commands, one a line; with `group` those of two words that begin with it ("data")."""
    names = [name for name in COMMANDS if not group or name.startswith(f"{group} ")]
    width = max(len(name) for name in names)
    lines = [f"usage: swe-rl {f'{group} ' if group else ''}COMMAND [flags]      (COMMAND --help explains each)", ""]
    lines += [f"  {name:<{width}}  {COMMANDS[name][1]}" for name in names]
    return "\n".join(lines)


def _find(argv: list[str]) -> tuple[str, list[str]] | None:
    for words in (2, 1):
        name = " ".join(argv[:words])
        if name in COMMANDS:
            return COMMANDS[name][0], argv[words:]
    return None


def main(argv: list[str] | None = None) -> int:
    """Run one subcommand. Exit codes: 0 done, 1 failed, 2 wrong usage or setting, 130 interrupted."""
    argv = sys.argv[1:] if argv is None else argv
    groups = {name.split()[0] for name in COMMANDS if " " in name}
    group = argv[0] if argv and argv[0] in groups else ""
    asked = argv[1:] if group else argv
    if not asked or asked[0] in HELP:
        print(usage(group))
        return 0
    found = _find(argv)
    if found is None:
        print(f"swe-rl: unknown command '{' '.join(argv[:2])}'\n\n{usage()}", file=sys.stderr)
        return 2
    module, rest = found
    # Waiting OpenMP threads spin by default: on a busy machine that costs three times the work. Read when torch is loaded.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        return int(importlib.import_module(module).main(rest) or 0)
    except UsageError as error:
        print(f"swe-rl: {error}", file=sys.stderr)
        return 2
    except SweRlError as error:
        print(f"swe-rl: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        if os.environ.get("SWE_RL_TRACEBACK"):
            raise
        print(f"swe-rl: {error.strerror or error}{f': {error.filename}' if error.filename else ''}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("swe-rl: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
