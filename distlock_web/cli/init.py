"""``distlock init``: what a store's server needs before the first lock; ``distlock redlock``: which servers vote."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable

from ..core.errors import BackendUnavailable
from ..core.findings import Adopting, Preparable
from ..core.registry import Store, registry
from ..web.held_locks import StoreUnreachable
from .exit_codes import USAGE, CommandFailed
from .parser import Context


def init(options: Namespace, context: Context) -> int:
    for store in chosen(options.store):
        backend = store.backend
        if not isinstance(backend, Preparable):
            context.out.line(f"{store.alias}: nothing to make; a {store.config.backend} store needs nothing.")
            continue
        try:
            done = backend.prepare()
        except BackendUnavailable as error:
            raise StoreUnreachable({store.alias: error}) from error
        context.out.line(f"{store.alias}: {done}")
    return 0


def redlock(options: Namespace, context: Context) -> int:
    store = registry().store(options.store or "default")
    backend = store.backend
    if not isinstance(backend, Adopting):
        raise CommandFailed(f"The store {store.alias!r} has no nodes that vote: it is a {store.config.backend}.", USAGE)
    try:
        done = backend.adopt()
    except BackendUnavailable as error:
        raise StoreUnreachable({store.alias: error}) from error
    context.out.line(f"{store.alias}: {done}")
    return 0


def chosen(alias: str | None) -> Iterable[Store]:
    """The store with this alias, or all. ``ConfigurationError`` for an unknown one."""
    stores = registry()
    return stores.stores.values() if alias is None else [stores.store(alias)]
