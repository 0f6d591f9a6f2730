"""``distlock init``: what a store's server needs before the first lock; ``distlock redlock``: which servers vote."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable

from ..core.errors import BackendUnavailable
from ..core.registry import Store, registry
from ..ops.held_locks import StoreUnreachable, chosen_stores
from .exit_codes import USAGE, CommandFailed
from .parser import Context


def init(options: Namespace, context: Context) -> int:
    for store in chosen_stores(registry(), options.store):
        done = _do(store, store.backend.prepare)
        nothing = f"nothing to make; a {store.config.backend} store needs nothing."
        context.out.line(f"{store.alias}: {done or nothing}")
    return 0


def redlock(options: Namespace, context: Context) -> int:
    store = registry().store(options.store or "default")
    done = _do(store, store.backend.adopt)
    if not done:
        raise CommandFailed(f"The store {store.alias!r} has no nodes that vote: it is {store.config.backend}.", USAGE)
    context.out.line(f"{store.alias}: {done}")
    return 0


def _do(store: Store, what: Callable[[], str]) -> str:
    try:
        return what()
    except BackendUnavailable as error:
        raise StoreUnreachable({store.alias: error}) from error
