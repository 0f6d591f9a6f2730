"""``distlock init``: what a store's server needs before the first lock; ``distlock redlock``: which servers vote."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable

from ..core.errors import BackendUnavailable
from ..core.findings import Adopting, Preparable
from ..core.registry import Store, registry
from ..web.held_locks import StoreUnreachable, chosen_stores
from .exit_codes import USAGE, CommandFailed
from .parser import Context


def init(options: Namespace, context: Context) -> int:
    for store in chosen_stores(registry(), options.store):
        backend = store.backend
        if isinstance(backend, Preparable):
            _do(store, backend.prepare, context)
        else:
            context.out.line(f"{store.alias}: nothing to make; a {store.config.backend} store needs nothing.")
    return 0


def redlock(options: Namespace, context: Context) -> int:
    store = registry().store(options.store or "default")
    backend = store.backend
    if not isinstance(backend, Adopting):
        raise CommandFailed(f"The store {store.alias!r} has no nodes that vote: it is {store.config.backend}.", USAGE)
    _do(store, backend.adopt, context)
    return 0


def _do(store: Store, what: Callable[[], str], context: Context) -> None:
    try:
        context.out.line(f"{store.alias}: {what()}")
    except BackendUnavailable as error:
        raise StoreUnreachable({store.alias: error}) from error
