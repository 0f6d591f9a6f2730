"""Copies of our package: each simulated process has its own, as each real one has, with modules and state of its own.

A copy is made once, from the same sources, and used again by later worlds. A mutant is a copy whose sources differ.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any
from unittest import mock
from weakref import WeakKeyDictionary, WeakSet

import distlock_web

from . import system

PACKAGE = Path(distlock_web.__file__).parent
NAME = "distlock_web"
MODULES = (
    NAME,
    f"{NAME}.backends.memory",
    f"{NAME}.backends.redis",
    f"{NAME}.backends.redis.cluster",
    f"{NAME}.backends.redlock",
    f"{NAME}.testing.contract.base",
    f"{NAME}.testing.fault_injector",
)
#: What the callers do: it is not part of the package, and each copy has its own.
CALLERS = ("tests.support.linearizability", "tests.support.history", "tests.support.storm")
#: Modules of redis-py whose operating system is simulated, too.
DRIVER = (
    "redis.connection",
    "redis.asyncio.connection",
    "redis._parsers.hiredis",
    "redis._parsers.socket",
    "redis.utils",
)

#: What a mutant changes: by file, below the package, a text that stands there once, and what stands there instead.
Mutation = Mapping[str, Sequence[tuple[str, str]]]
#: And what each copy of a script changes: no simulated crowd is as large as what that takes for many.
SMALLER: Mutation = {"backends/redis/scripts/_many.lua": [("local MANY = 32 ", "local MANY = 1 ")]}


class _Loader(importlib.machinery.SourceFileLoader):
    changes: Sequence[tuple[str, str]] = ()

    def get_code(self, fullname: str) -> CodeType | None:
        if not self.changes:
            return super().get_code(fullname)
        path = self.get_filename(fullname)
        return compile(changed(Path(path).read_text("utf-8"), self.changes), path, "exec", dont_inherit=True)


def changed(text: str, changes: Sequence[tuple[str, str]]) -> str:
    for old, new in changes:
        if text.count(old) != 1:
            raise ValueError(f"a mutant no longer fits: {text.count(old)} times {old!r}")
        text = text.replace(old, new)
    return text


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, mutation: Mutation) -> None:
        self._mutation = mutation

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        if fullname != NAME and not fullname.startswith(f"{NAME}."):
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path if fullname != NAME else [str(PACKAGE.parent)])
        if spec is not None and spec.origin is not None:
            loader = _Loader(fullname, spec.origin)
            loader.changes = self._mutation.get(Path(spec.origin).relative_to(PACKAGE).as_posix(), ())
            spec.loader = loader
        return spec


def _ours() -> dict[str, ModuleType]:
    return {name: module for name, module in sys.modules.items() if name == NAME or name.startswith(f"{NAME}.")}


@contextmanager
def _scripts(mutation: Mutation) -> Iterator[None]:
    """The Lua scripts are files that are read while the modules are loaded."""
    read = Path.read_bytes

    def read_changed(path: Path) -> bytes:
        data = read(path)
        name = path.relative_to(PACKAGE).as_posix() if path.suffix == ".lua" else ""
        changes = [*SMALLER.get(name, ()), *mutation.get(name, ())]
        return changed(data.decode(), changes).encode() if changes else data

    with mock.patch.object(Path, "read_bytes", read_changed):
        yield


class Program:
    """One copy."""

    def __init__(self, mutation: Mutation | None = None) -> None:
        finder, own = _Finder(mutation or {}), _ours()
        for name in own:
            del sys.modules[name]
        sys.meta_path.insert(0, finder)
        try:
            with _scripts(mutation or {}):
                for name in MODULES:
                    importlib.import_module(name)
            self._modules = _ours()
            files = {module.__file__ for module in self._modules.values()}
            for name in mutation or ():
                if name.endswith(".py") and str(PACKAGE / name) not in files:
                    raise ValueError(f"a mutant no longer fits: there is no {name}")
        finally:
            sys.meta_path.remove(finder)
            for name in _ours():
                del sys.modules[name]
            sys.modules.update(own)
        for module in self._modules.values():
            system.put_into(module)
        # A store loads its backend by name: it has to find this copy's.
        self["core.loading"].import_module = self._modules.__getitem__
        self.lock = self._modules[NAME].lock
        *_, self.storm = self.load(*CALLERS)

    def __getitem__(self, name: str) -> Any:
        return self._modules[f"{NAME}.{name}"]

    def load(self, *names: str) -> list[ModuleType]:
        """These modules, which use the package, over this copy of it."""
        own = _ours() | {name: sys.modules.pop(name) for name in names if name in sys.modules}
        for name in _ours():
            del sys.modules[name]
        sys.modules.update(self._modules)
        try:
            modules = [importlib.import_module(name) for name in names]
        finally:
            for name in {*_ours(), *names}:
                del sys.modules[name]
            sys.modules.update(own)
        for module in modules:
            system.put_into(module)
        return modules

    def begin(self, settings: Mapping[str, Any]) -> None:
        """A process begins: nothing of an earlier one is left. Called by its first thread."""
        runtime, process, registry = self["core.runtime"], self["core.process"], self["core.registry"]
        registry._stores = WeakSet()
        registry._first_use = self["core.worker"].threading.RLock()
        process.Process.pid, process.Process.generation = process.os.getpid(), 0
        runtime.new_token.__defaults__ = (runtime.new_ident(),)
        for store in registry.configure(settings).stores.values():
            _ = store.backend

    def end(self) -> None:
        """Its world has ended: nothing of it reaches the next one."""
        self["locks.watchdog"]._watchdogs = WeakKeyDictionary()
        self["locks.reentry.chain"]._blocks.clear()
        self["core.registry"]._configured = None
