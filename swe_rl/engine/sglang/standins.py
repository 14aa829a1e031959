"""Import stand-ins for GPU packages, so that an unmodified SGLang starts on a machine without a GPU.

SGLang's CPU path is plain PyTorch, but some of its modules import triton, sgl_kernel or torchvision at their top. A
stand-in satisfies the import and computes nothing: calling a kernel of one raises. Packages that are really installed
are never replaced, and probes (`importlib.util.find_spec`) go on answering that a stood-in package is not there.

This file runs inside SGLang's environment and imports only the standard library.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Iterator
from typing import Any

PACKAGES = ("triton", "sgl_kernel", "torchvision")
KERNELS = "sgl_kernel"  # its functions are computations: one that is reached must fail, not return its argument


class _AnyClass:
    """Base of stood-in classes: can be subclassed, instantiated with anything, and used as a decorator."""

    def __init__(self, *_args: Any, **_kwargs: Any) -> None:
        super().__init__()

    def __init_subclass__(cls, **_kwargs: Any) -> None:
        super().__init_subclass__()

    def __call__(self, *args: Any, **_kwargs: Any) -> Any:
        return args[0] if len(args) == 1 and callable(args[0]) else None


class StandIn(types.ModuleType):
    """Module, decorator or constant, whatever the importing code takes it for."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        full_name = f"{self.__name__}.{name}"
        child: Any = sys.modules.get(full_name)
        if child is None:  # capitalised names are used as classes: bases, annotations, members of a Union
            child = type(name, (_AnyClass,), {"__module__": self.__name__}) if name[0].isupper() else _new(full_name)
        setattr(self, name, child)
        return child

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.__name__.partition(".")[0] == KERNELS:
            raise RuntimeError(f"{self.__name__} is a GPU kernel; it does not exist on this machine")
        if len(args) == 1 and callable(args[0]) and not kwargs:
            return args[0]  # @triton.jit
        return lambda function=None, *_args, **_kwargs: function  # @triton.jit(...), @triton.autotune(...)

    def __or__(self, other: Any) -> Any:
        return other

    __ror__ = __or__

    def __getitem__(self, key: Any) -> StandIn:
        return self

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __len__(self) -> int:
        return 0

    def __bool__(self) -> bool:
        return False


def _new(name: str) -> StandIn:
    module = StandIn(name)
    attributes: dict[str, Any] = {"__path__": [], "__version__": "3.0.0"}
    if name == "triton":  # plain integer helpers that code on the CPU path does call
        attributes["cdiv"] = lambda a, b: -(a // -b)
        attributes["next_power_of_2"] = lambda n: 1 << (n - 1).bit_length() if n > 0 else 1
    module.__dict__.update(attributes)
    return module


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if fullname.partition(".")[0] in PACKAGES:
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _new(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing to run: attributes appear when they are asked for."""


def install() -> None:
    """Put the stand-ins last in the import order. A second call does nothing."""
    if any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return
    probe = importlib.util.find_spec

    def honest_probe(name: str, package: str | None = None) -> importlib.machinery.ModuleSpec | None:
        if isinstance(sys.modules.get(name.partition(".")[0]), StandIn):
            return None
        spec = probe(name, package)
        return None if spec is not None and isinstance(spec.loader, _Finder) else spec

    importlib.util.find_spec = honest_probe
    sys.meta_path.append(_Finder())
