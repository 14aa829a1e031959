"""Every typed error survives the way between processes: Ray pickles what a training process or an attempt raises."""

from __future__ import annotations

import importlib
import inspect
import pickle
import pkgutil
from collections.abc import Iterator
from typing import Any

import swe_rl
from swe_rl.errors import SweRlError

PROGRAMS = ("__main__", ".synth.test_server")  # run when imported
VALUES: dict[str, Any] = {"str": "engine http://e0 answered 400: no such tensor", "int": 400, "float": 1.5}


def kinds(base: type[SweRlError]) -> Iterator[type[SweRlError]]:
    yield base
    for kind in base.__subclasses__():
        yield from kinds(kind)


def made(kind: type[SweRlError]) -> SweRlError:
    if "__init__" not in vars(kind):
        return kind(VALUES["str"])
    parameters = list(inspect.signature(kind.__init__).parameters.values())[1:]
    return kind(*(VALUES[parameter.annotation] for parameter in parameters))


def test_every_error_is_the_same_after_pickling() -> None:
    for module in pkgutil.walk_packages(swe_rl.__path__, "swe_rl."):
        if not module.name.endswith(PROGRAMS):
            importlib.import_module(module.name)
    checked = set()
    for kind in kinds(SweRlError):
        error = made(kind)
        error.extra = {"rank": 3}  # type: ignore[attr-defined]
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), str(again), again.args, vars(again)) == (kind, str(error), error.args, vars(error))
        checked.add(kind.__name__)
    assert {"EngineRefused", "ServerRefusal", "DeadlineExceeded", "CheckpointError"} <= checked
