"""A pytest plugin for eval scripts that are not ours: says on the script's output when a session begins and how it ends.

Code under test can print a whole session's output and leave with os._exit(0); it cannot print the end that this plugin owes.
Loaded through PYTEST_ADDOPTS in whatever Python the image has, so it keeps to the oldest syntax and touches nothing else.
"""

import os

_WORD = os.environ.pop("SWE_RL_SESSION", "")
_FD = os.dup(2)  # before pytest captures output
# Sessions that tests start themselves are none of ours.
os.environ.pop("PYTEST_ADDOPTS", None)
_PATH = os.environ.pop("SWE_RL_PYTHONPATH", "")
if _PATH:
    os.environ["PYTHONPATH"] = _PATH
else:
    os.environ.pop("PYTHONPATH", None)


def _say(text):  # type: ignore[no-untyped-def]
    os.write(_FD, ("\n" + _WORD + " " + text + "\n").encode("ascii"))


if _WORD:
    _say("begin")


def pytest_sessionfinish(session, exitstatus):  # type: ignore[no-untyped-def]
    session.config._swe_rl_status = int(exitstatus)


def pytest_unconfigure(config):  # type: ignore[no-untyped-def]
    if _WORD:
        _say("end " + str(getattr(config, "_swe_rl_status", -1)))
