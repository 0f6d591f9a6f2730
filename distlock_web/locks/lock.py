"""The doors: ``lock(...)`` for blocks, ``attach`` for a lock that was handed over. Thin; the engine does the work."""

from __future__ import annotations

import base64
import json
import types
from collections.abc import Iterable
from types import TracebackType
from typing import Any

from ..core.config import StoreConfig, flag, policy, seconds
from ..core.config import prefix as checked_prefix
from ..core.errors import ConfigurationError, LockBusy, NotHeld
from ..core.keys import shorten, whole
from ..core.registry import Store, registry
from ..core.runtime import TASKS, THREADS, Runtime, drive, in_event_loop
from . import engine, transfer
from .lease import Lease
from .scope import OnLost, Spec, active_scopes


class Unset:
    """Not given: the store's setting holds. (``None`` means something: wait for ever.)"""

    def __repr__(self) -> str:
        return "the store's setting"


UNSET = Unset()


class Options:
    """The options that a lock and the decorator share, checked as far as that is possible before the store is known."""

    __slots__ = ("expire", "hold_at_least", "on_lost", "prefix", "renew", "renew_for", "store", "wait")

    def __init__(
        self,
        *,
        prefix: str | None = None,
        expire: float | None = None,
        wait: float | Unset | None = UNSET,
        renew: bool | None = None,
        renew_for: float | None = None,
        store: str = "default",
        on_lost: OnLost | None = None,
        hold_at_least: float | None = None,
    ) -> None:
        self.prefix = checked_prefix(prefix, "prefix") if prefix is not None else None
        self.expire = seconds(expire, "expire") if expire is not None else None
        self.wait = wait if isinstance(wait, Unset) else seconds(wait, "wait", zero=True, none=True)
        self.renew = flag(renew, "renew") if renew is not None else None
        self.renew_for = seconds(renew_for, "renew_for") if renew_for is not None else None
        self.store = store
        self.on_lost = policy(on_lost, "on_lost", "raise", "warn", "cancel") if on_lost is not None else None
        self.hold_at_least = (
            seconds(hold_at_least, "hold_at_least", zero=True) or 0.0 if hold_at_least is not None else 0.0
        )
        if self.renew_for is not None and self.renew is False:
            raise ConfigurationError("renew_for bounds the renewal: it needs renew=True.")

    def config(self) -> StoreConfig:
        return registry().store(self.store).config

    def spec(self, keys: tuple[str, ...], runtime: Runtime, what: str = "", code: types.CodeType | None = None) -> Spec:
        """The request for these escaped keys, with the store's defaults filled in."""
        store = registry().store(self.store)
        config = store.config
        expire = self.expire if self.expire is not None else config.expire
        minimum = store.backend.capabilities.min_expire
        if expire < minimum:
            seconds(expire, "expire", minimum=minimum)
        on_lost = self.on_lost or config.on_lost
        if on_lost == "cancel" and runtime is not TASKS:
            if self.on_lost is not None:
                raise ConfigurationError(
                    'on_lost="cancel" cancels an asyncio task; in a thread use "raise" or a callable.'
                )
            on_lost = "raise"  # the setting is for tasks and threads alike, and a thread cannot be cancelled
        prefix = config.prefix if self.prefix is None else self.prefix
        return Spec(
            store=store,
            names=_names(prefix, keys),
            expire=expire,
            wait=config.wait if isinstance(self.wait, Unset) else self.wait,
            renew=config.renew if self.renew is None else self.renew,
            renew_for=self.renew_for,
            on_lost=on_lost,  # type: ignore[arg-type]
            hold_at_least=self.hold_at_least,
            what=what,
            code=code,
        )


def _names(prefix: str, keys: tuple[str, ...]) -> tuple[str, ...]:
    """The names, in the one order in which everybody takes them: so nobody waits in a circle."""
    if len(keys) == 1:
        return (shorten(prefix + keys[0]),)
    return tuple(sorted({shorten(prefix + key) for key in keys}))


class Lock:
    """A lock that can be taken, again and again and by many at once. It holds nothing: what is held is a ``Lease``."""

    __slots__ = ("_entered", "_keys", "_options")

    def __init__(self, keys: tuple[str, ...], options: Options) -> None:
        self._keys = keys
        self._options = options
        self._entered: list[Lease] = []

    def acquire(self) -> Lease:
        """Take the lock, waiting as ``wait`` says. Raises ``LockBusy``, ``BackendUnavailable``, ``LeaseLost``."""
        return drive(self._acquire(blocking()))

    async def aacquire(self) -> Lease:
        """The asyncio twin of :meth:`acquire`."""
        return await self._acquire(TASKS)

    def try_acquire(self) -> Lease | None:
        """Take the lock, or None if somebody else has it (after ``wait``). A store that is away still raises."""
        try:
            return self.acquire()
        except LockBusy:
            return None

    async def atry_acquire(self) -> Lease | None:
        """The asyncio twin of :meth:`try_acquire`."""
        try:
            return await self.aacquire()
        except LockBusy:
            return None

    async def _acquire(self, runtime: Runtime) -> Lease:
        lease = Lease(self._options.spec(self._keys, runtime), runtime)
        await engine.acquire(lease)
        return lease

    def __enter__(self) -> Lease:
        lease = self.acquire()
        self._entered.append(lease)
        return lease

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        drive(engine.end(self._leave(), error))

    async def __aenter__(self) -> Lease:
        lease = await self.aacquire()
        self._entered.append(lease)
        return lease

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await engine.end(self._leave(), error)

    def _leave(self) -> Lease:
        """The lease whose block ends here: this call chain's, for several threads and tasks may use one lock."""
        lease = self._entered[0] if len(self._entered) == 1 else self._own_of_several()
        self._entered.remove(lease)
        return lease

    def _own_of_several(self) -> Lease:
        chain = active_scopes()
        lease = next((lease for lease in reversed(self._entered) if lease in chain), None)
        if lease is None:
            # Given back inside its block; or the block ends in another context than it began in, as a generator's may.
            # Guessing among several live ones could give back the lock of somebody who is still inside.
            lease = next((lease for lease in reversed(self._entered) if not lease.alive), None)
        if lease is None:
            raise ConfigurationError(
                "Several blocks use one lock object, and one of them ends in another context than it began in: "
                "make a lock(...) for each block."
            )
        return lease


def blocking() -> Runtime:
    """The runtime of a blocking door; refused inside a running event loop, which it would stop."""
    if in_event_loop():
        raise ConfigurationError(
            "This is a blocking call inside a running event loop. In async code write "
            "`async with lock(...)`, or `await lock(...).aacquire()`."
        )
    return THREADS


def lock(
    key: str | Iterable[str],
    *,
    prefix: str | None = None,
    expire: float | None = None,
    wait: float | Unset | None = UNSET,
    renew: bool | None = None,
    renew_for: float | None = None,
    store: str = "default",
    on_lost: OnLost | None = None,
    hold_at_least: float | None = None,
) -> Lock:
    """A lock on ``key``, or on several keys, all or none: ``with lock("stock:42", expire=10, wait=2) as lease:``.

    In async code: ``async with``. The lock is exclusive among all processes that use the store, until the block
    ends or ``expire`` seconds are over; a block that may take longer says ``renew=True``. Inside the block the same
    lock is entered again without waiting.

    All times are seconds. ``wait``: how long to queue, 0 not at all, None for ever. ``renew_for``: the longest that it
    is renewed. ``hold_at_least``: stay taken at least so long after success. ``on_lost``: ``"raise"`` at the end of the
    block, ``"warn"``, ``"cancel"`` the asyncio task, or a callable. What is left out comes from the store's settings.

    Raises ``ConfigurationError`` here, ``LockBusy`` or ``BackendUnavailable`` when taken, ``LeaseLost`` at the end.
    """
    keys = tuple(key) if isinstance(key, Iterable) and not isinstance(key, (str, bytes)) else (key,)
    if not keys:
        raise ConfigurationError("A lock needs at least one key.")
    options = Options(
        prefix=prefix, expire=expire, wait=wait, renew=renew, renew_for=renew_for, store=store, on_lost=on_lost,
        hold_at_least=hold_at_least,
    )  # fmt: skip
    return Lock(tuple(map(whole, keys)), options)


def attach(ticket: str, *, expire: float | None = None, renew: bool | None = None) -> Lease:
    """Take on a lock from the string that ``lease.detach()`` gave, here or in another process.

    ``with attach(ticket) as lease:`` goes on under the same lock and the same fence, and releases it. Raises
    ``NotHeld`` if the string was used before, came after its transit time, or was altered.
    """
    return drive(_attach(ticket, expire, renew, blocking()))


async def aattach(ticket: str, *, expire: float | None = None, renew: bool | None = None) -> Lease:
    """The asyncio twin of :func:`attach`."""
    return await _attach(ticket, expire, renew, TASKS)


async def _attach(ticket: str, expire: float | None, renew: bool | None, runtime: Runtime) -> Lease:
    alias, names, first_expire, first_renew = _read(ticket)
    store: Store = registry().store(alias)
    spec = Spec(
        store=store,
        names=names,
        expire=seconds(expire, "expire") or first_expire if expire is not None else first_expire,
        wait=0.0,
        renew=first_renew if renew is None else flag(renew, "renew"),
    )
    lease = Lease(spec, runtime)
    await transfer.attach(lease, ticket)
    return lease


def _read(ticket: str) -> tuple[str, tuple[str, ...], float, bool]:
    try:
        alias, held, expire, renew, _ = json.loads(base64.urlsafe_b64decode(ticket.encode("ascii", "replace")))
        names: tuple[Any, ...] = tuple(name for name, _ in held)
        if not names:
            raise ValueError("no names")
        return str(alias), tuple(map(str, names)), float(expire), bool(renew)
    except (ValueError, TypeError, AttributeError):
        raise NotHeld("This is not a string that lease.detach() gave, or it was altered.") from None
