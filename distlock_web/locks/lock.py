"""``lock(...)`` for blocks: the entry point. The engine does the work."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING, Any, Never, Unpack

from ..core.backend import retry_once
from ..core.errors import ConfigurationError, DistLockError, LockBusy
from ..core.keys import is_ordinary, refuse_forgotten_f, whole_keys
from ..core.runtime import TASKS, THREADS, Runtime, blocking_runtime, drive
from ..core.setting import shown
from . import ending, engine
from .call_site import call_site, known_sites
from .elsewhere import refuse_arguments
from .lease import Lease
from .options import LockOptions, Options, options_of, show_options
from .reentry import chain
from .reentry.chain import CALLED, STACKED, STACKS, STANDS_STILL
from .scope import Opener, Scope


class Lock:
    """A lock that many callers can take, many times. It holds nothing itself: taking it gives a ``Lease``."""

    __slots__ = ("_keys", "_line", "_options")

    def __init__(self, keys: tuple[str, ...], options: Options, line: str) -> None:
        self._keys = keys
        self._options = options
        self._line = line  #: ``module:line``, for people

    def acquire(self, *words: Never, **other_words: Never) -> Lease:
        """Take the lock; wait for up to ``wait``. Raises ``LockBusy``, ``BackendUnavailable``, ``LeaseLost``."""
        if words or other_words:
            refuse_arguments("acquire()", words, other_words)
        return self._acquire_now()

    async def aacquire(self, *words: Never, **other_words: Never) -> Lease:
        """The asyncio twin of :meth:`acquire`."""
        if words or other_words:
            refuse_arguments("aacquire()", words, other_words)
        return await self._acquire()

    def try_acquire(self) -> Lease | None:
        """Take the lock. Returns None if another caller has it (after ``wait``). Raises ``BackendUnavailable``."""
        try:
            return self._acquire_now()
        except LockBusy:
            return None

    async def atry_acquire(self) -> Lease | None:
        """The asyncio twin of :meth:`try_acquire`."""
        try:
            return await self._acquire()
        except LockBusy:
            return None

    def locked(self) -> bool:
        """Whether anybody, also the caller, has the lock, or one of its names. The answer may already be out of date.

        Do not decide by it whether to work without the lock: use ``try_acquire``. Raises ``BackendUnavailable``.
        """
        return drive(self._locked(blocking_runtime("`await lock(...).alocked()`")))

    async def alocked(self) -> bool:
        """The asyncio twin of :meth:`locked`."""
        return await self._locked(TASKS)

    async def _locked(self, runtime: Runtime) -> bool:
        spec = self._options.spec(self._keys, runtime)
        return bool(await retry_once(spec.store.port(runtime).inspect, spec.names))

    async def _acquire(self, opener: Opener | None = None) -> Lease:
        scope = Scope(self._options.spec(self._keys, TASKS, template=self._line), TASKS, opener, opener is not None)
        await engine.acquire(scope)
        return Lease(scope)

    def _acquire_now(self, opener: Opener | None = None) -> Lease:
        runtime = blocking_runtime()
        scope = Scope(self._options.spec(self._keys, runtime, template=self._line), runtime, opener, opener is not None)
        try:
            drive(engine.acquire(scope))
            return Lease(scope)
        except DistLockError:
            raise
        except BaseException as error:  # a signal's may come when the lock is ours, and it would not be given back
            drive(ending.abort(scope, error))
            raise

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """A ``Lock`` of other libraries is what one holds. Here that is the ``Lease``: say where it is."""
            hint = ""
            if not name.startswith("_") and hasattr(Lease, name):
                hint = (
                    f" What is held is a lease: lease = lock(...).acquire(), then lease.{name}; "
                    "or with lock(...) as lease:, which releases it at the end."
                )
            raise AttributeError(f"A Lock has no {name!r}.{hint}", name=name, obj=self)

        def __call__(self, *args: object, **kwargs: object) -> Any:
            """It is no decorator: there the key may have fields of the call."""
            key = ", ".join(map(repr, self._keys))
            raise ConfigurationError(
                f"lock({key}) is for blocks, `with lock(...):`, and is not called. A function runs under its lock "
                f"with @distributed_lockable(key={key})."
            )

    def __enter__(self) -> Lease:
        frame = sys._getframe(1)  # as ``chain.place_of``, without a call more
        if frame.f_globals is STACKS:
            return self._acquire_now((self, STACKED))
        return self._acquire_now((self, frame if frame.f_code.co_flags & STANDS_STILL else CALLED))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A signal's handler may raise between any two instructions: wherever that is, the block is found (again, if it
        # was found and not noted yet) and released. A LeaseLost is the end's own, and leaves nothing to abort; a
        # ConfigurationError is find_block's: there is no such block to release.
        scope = None
        try:
            scope = chain.find_block(self, sys._getframe(1), kind is GeneratorExit)
            if scope is not None:
                chain.exit_block(scope)
                drive(ending.end(scope, error, THREADS))  # not end_now, whose guard is the one below
        except DistLockError:
            raise
        except BaseException as interruption:
            if scope is None:
                scope = chain.find_block(self, sys._getframe(1), kind is GeneratorExit)
            if scope is not None:
                drive(ending.abort(scope, interruption, success=error is None))
            raise

    async def __aenter__(self) -> Lease:
        return await self._acquire((self, chain.place_of(sys._getframe(1))))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        scope = chain.find_block(self, sys._getframe(1), kind is GeneratorExit)
        if scope is not None:
            chain.exit_block(scope)
            await ending.end(scope, error)


def lock(key: object, *others: Never, **options: Unpack[LockOptions]) -> Lock:
    """A lock on ``key``, or on several keys, all or none: ``with lock("stock:42", expire=10, wait=2) as lease:``.

    A key is a string, or an object of Django's ORM or of SQLAlchemy: ``lock(order)`` is the lock of its row.

    In async code use ``async with``. The lock is exclusive among all processes that use the store, until the block
    ends or ``expire`` seconds are over. If the block may take longer, use ``renew=True``. Inside the block the same
    lock is entered again without waiting.

    Options: ``prefix, expire, wait, max_waiters, renew, renew_for, store, on_lost, limit, shared, hold_at_least``.
    Times are seconds, a ``timedelta``, or text such as ``"1h30m"``, ``"90s"``, ``"500ms"``. ``wait``: how long to
    queue; 0: not at all; None: for ever. ``max_waiters``: how many may queue; the next caller is refused at once.
    ``renew_for``: longest total time to renew. ``on_lost``: ``"raise"`` at the end of the block, ``"warn"``,
    ``"cancel"`` the asyncio task, or a callable. ``limit``: how many may hold the lock at once. ``shared``: all callers
    with ``shared=True`` may hold it together. ``hold_at_least``: if the block succeeds, keep the lock at least this
    long, counted from when it was acquired. Options that are left out come from the store's settings.

    Raises ``ConfigurationError`` here, ``LockBusy`` or ``BackendUnavailable`` when the lock is taken, and ``LeaseLost``
    at the end of the block.
    """
    if others:
        raise ConfigurationError(
            f"lock() takes one key, and options by name: not {shown(others[0])} beside it. Several keys are a list, "
            f"lock([a, b]). A client is not given: the store is that of the settings (DISTLOCK, configure())."
        )
    if type(key) is str and key and is_ordinary(key):
        keys: tuple[str, ...] = (key,)
    else:
        refuse_forgotten_f(key, sys._getframe(1).f_code)
        keys = whole_keys(key)
    frame = sys._getframe(1)
    known = known_sites.get((id(frame.f_code), frame.f_lasti))
    return Lock(keys, options_of(options), call_site(frame) if known is None else known[1])


show_options(lock, LockOptions)
