"""What a simulated program finds where it looks for its operating system: clocks, threads, locks, sockets.

The modules of the real one have these names, and so have the objects here. Each stands for the module in the simulated
processes' copies of our package, and in the modules of redis-py that we use: both run unmodified. Outside of a world
they do what the real ones do.
"""

from __future__ import annotations

import os
import random
import secrets
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any

from . import world as worlds

#: The world that is running.
_world: worlds.World | None = None


def enter(world: worlds.World | None) -> None:
    global _world
    _world = world


def running() -> worlds.World | None:
    """The world of the running thread; None: none of its threads runs."""
    return _world if _world is not None and _world.thread is not None else None


def _inside() -> worlds.World:
    assert _world is not None
    return _world


class Module:
    """A module in which some names are another's; all others are its own."""

    def __init__(self, real: ModuleType) -> None:
        own = {name for kind in type(self).__mro__[:-1] for name in vars(kind)}
        vars(self).update((name, value) for name, value in vars(real).items() if name not in own)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...


# Clocks -------------------------------------------------------------------------------------------------------------


class Time(Module):
    def _machine(self) -> worlds.Machine | None:
        if _world is None or _world.thread is None:
            return None
        _world.preempt()
        _world.time += worlds.LOOK
        return _world.thread.process.machine

    def clock_gettime(self, clock: int) -> float:
        machine = self._machine()
        return time.clock_gettime(clock) if machine is None else machine.boottime()

    def monotonic(self) -> float:
        machine = self._machine()
        return time.monotonic() if machine is None else machine.boottime()

    perf_counter = monotonic

    def time(self) -> float:
        machine = self._machine()
        return time.time() if machine is None else machine.wall()

    def time_ns(self) -> int:
        return int(self.time() * 1e9)

    def sleep(self, seconds: float) -> None:
        world = running()
        if world is None:
            time.sleep(seconds)
        else:
            world.sleep(seconds)


# Threads and locks --------------------------------------------------------------------------------------------------


class Lock:
    """``threading.Lock``, and with ``reentrant`` an ``RLock``."""

    __slots__ = ("_count", "_owner", "_reentrant", "_waiting")

    def __init__(self, reentrant: bool = False) -> None:
        self._reentrant = reentrant
        self._owner: object = None
        self._count = 0
        self._waiting: deque[worlds.Thread] = deque()

    def locked(self) -> bool:
        return self._count > 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        world = running()
        me = world.here() if world is not None else self
        if world is not None:
            world.preempt()
        if self._take(me):
            return True
        if not blocking or world is None:
            return False
        until = None if timeout < 0 else world.time + timeout / world.here().process.machine.rate
        thread = world.here()
        while True:
            left = None if until is None else (until - world.time) * thread.process.machine.rate
            if left is not None and left <= 0:
                return False
            self._waiting.append(thread)
            try:
                world.sleep(left)
            finally:
                self._waiting.remove(thread)
            if self._take(me):
                return True

    def _take(self, me: object) -> bool:
        if self._count == 0 or (self._reentrant and self._owner is me):
            self._owner = me
            self._count += 1
            return True
        return False

    def release(self) -> None:
        if self._count == 0:
            raise RuntimeError("release unlocked lock")
        self._count -= 1
        if self._count == 0:
            self._owner = None
            if self._waiting:
                _inside().wake(self._waiting[0])

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class Event:
    """``threading.Event``."""

    def __init__(self) -> None:
        self._set = False
        self._waiting: list[worlds.Thread] = []

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        for thread in self._waiting:
            _inside().wake(thread)

    def wait(self, timeout: float | None = None) -> bool:
        if not self._set:
            world = _inside()
            self._waiting.append(world.here())
            try:
                world.sleep(timeout)
            finally:
                self._waiting.remove(world.here())
        return self._set


class Nobody:
    """A thread that never runs."""

    ident = 0

    def start(self) -> None: ...


class Threading(Module):
    TIMEOUT_MAX = threading.TIMEOUT_MAX
    Lock = Lock
    Event = Event

    def RLock(self) -> Any:
        return Lock(reentrant=True)

    def Thread(
        self,
        target: Callable[..., object],
        args: tuple[Any, ...] = (),
        name: str = "",
        daemon: bool | None = None,
    ) -> Any:
        world = running()
        if world is None:
            return Nobody()  # of garbage, after the end of its world
        return worlds.Thread(world.here().process, target, args, name)

    def current_thread(self) -> Any:
        world = running()
        return threading.current_thread() if world is None else world.here()

    def get_ident(self) -> int:
        world = running()
        return threading.get_ident() if world is None else world.here().ident or 0


# Chance -------------------------------------------------------------------------------------------------------------


class Chance(random.Random):
    """The world's own. Outside of one it is a random number generator like others."""

    def random(self) -> float:
        return _world.random.random() if _world is not None else super().random()

    def getrandbits(self, bits: int) -> int:
        return _world.random.getrandbits(bits) if _world is not None else super().getrandbits(bits)


CHANCE = Chance()


class RandomModule(Module):
    def __init__(self, real: ModuleType) -> None:
        super().__init__(real)
        vars(self).update((name, getattr(CHANCE, name)) for name in dir(CHANCE) if name in vars(real))


class Secrets(Module):
    def token_hex(self, length: int) -> str:
        return CHANCE.randbytes(length).hex()


class System(Module):
    """``os``."""

    def urandom(self, length: int) -> bytes:
        return CHANCE.randbytes(length)

    def getpid(self) -> int:
        world = running()
        return os.getpid() if world is None else world.here().process.pid


# Sockets ------------------------------------------------------------------------------------------------------------


class Sockets(Module):
    """``socket``. What is behind an address is the world's network's business."""

    def socket(self, family: int = 0, kind: int = 0, protocol: int = 0) -> Any:
        world = running()
        return socket.socket(family, kind, protocol) if world is None else world.network.socket(world)

    def getaddrinfo(self, host: str, port: int, *_: Any, **__: Any) -> Any:
        if running() is None:
            return socket.getaddrinfo(host, port, *_, **__)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port))]


class Poll:
    """``select.poll()``: of sockets of the world's network."""

    def __init__(self, world: worlds.World) -> None:
        self._world = world
        self._sockets: dict[int, Any] = {}

    def register(self, descriptor: Any, mask: int = 0) -> None:
        number = descriptor if isinstance(descriptor, int) else descriptor.fileno()
        self._sockets[number] = self._world.network.sockets[number]

    def poll(self, milliseconds: float | None = None) -> list[tuple[int, int]]:
        world = self._world
        until = None if milliseconds is None or milliseconds < 0 else world.time + milliseconds / 1000
        me = world.here()
        world.preempt()
        while True:
            ready = [(number, select.POLLIN) for number, one in self._sockets.items() if one.readable]
            left = None if until is None else until - world.time
            if ready or (left is not None and left <= 0):
                return ready
            for one in self._sockets.values():
                one.readers.append(me)
            try:
                world.sleep(left)
            finally:
                for one in self._sockets.values():
                    one.readers.remove(me)


class Select(Module):
    def poll(self) -> Any:
        world = running()
        return select.poll() if world is None else Poll(world)


MODULES: dict[ModuleType, Module] = {
    time: Time(time),
    threading: Threading(threading),
    random: RandomModule(random),
    secrets: Secrets(secrets),
    os: System(os),
    socket: Sockets(socket),
    select: Select(select),
}


def put_into(module: ModuleType) -> None:
    """From now on this module's operating system is the simulated one."""
    for name, value in list(vars(module).items()):
        if isinstance(value, ModuleType) and value in MODULES:
            setattr(module, name, MODULES[value])
        elif isinstance(value, random.SystemRandom):
            setattr(module, name, CHANCE)
        elif isinstance(value, partial) and value.func is time.clock_gettime:
            setattr(module, name, partial(MODULES[time].clock_gettime, *value.args))
