"""A request of your own making: a task, a command, a message from a queue. It holds no lock."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, NamedTuple, TypeVar

from ..core.errors import ConfigurationError
from ..core.request_id import Bound, Origin, acceptable, bind_origin, unbind_origin
from . import hooks
from .function_names import qualified_name
from .reentry.chain import OUTSIDE, Chain, swap_scopes

F = TypeVar("F", bound=Callable[..., Any])


def request_scope(request_id: str | None = None, path: str = "") -> RequestContext:
    """Give a task or a command a request id, as the middleware does for requests: ``with request_scope("job-17"):``.

    In the block ``current_request_id()`` is this id, or a new one if it is left out. The id is on log records
    (``RequestIDFilter``) and on every lock that is taken. ``with ... as`` gives the id. ``path`` is a text for people
    that says what runs, in place of a request's method and path. Use plain ``with``, also in async code, or use it as
    a decorator of functions and of ``async def``: then each call is a request of its own.

    The block begins inside no lock, like every request. A lock that is held around it, or that an earlier job left in
    this thread, belongs to another request: the block waits for it and does not re-enter it.

    Raises ``ConfigurationError`` for an id that is not 1 to 128 of ``A-Z a-z 0-9 . _ : = + / @ ~ -``.
    """
    if callable(request_id):
        raise ConfigurationError("Write @request_scope(), with parentheses: it takes the id of the request.")
    if request_id is not None and not (isinstance(request_id, str) and acceptable(request_id)):
        raise ConfigurationError(
            f"request_id is {request_id!r}; it has to be text of 1 to 128 characters: letters, digits and ._:=+/@~-"
        )
    return RequestContext(request_id, path)


class Outer(NamedTuple):
    """What entering a request has bound to the running context, and the chain that was there before."""

    bound: Bound
    scopes: Chain


class RequestBounds:
    """One request: while it is entered its origin is bound, and only its own locks count as those of the running code.

    A request begins inside of no lock: a lease that an earlier request left behind in this thread is not its own.
    """

    __slots__ = ("_origin", "_scopes")

    def __init__(self, origin: Origin) -> None:
        self._origin = origin
        self._scopes: Chain = OUTSIDE

    def enter(self) -> Outer:
        """Begin or go on with the request. :meth:`leave` wants what this returns."""
        return Outer(bind_origin(self._origin), swap_scopes(self._scopes))

    def leave(self, outer: Outer) -> None:
        """Put back what was bound before: threads are used again, and one application may call another."""
        if unbind_origin(outer.bound):
            self._scopes = swap_scopes(outer.scopes)


class RequestContext(AbstractContextManager[str]):
    """What ``request_scope`` gives: a ``with`` block, or a decorator."""

    __slots__ = ("_entered", "_path", "_request_id")

    def __init__(self, request_id: str | None, path: str) -> None:
        self._request_id = request_id
        self._path = path
        self._entered: tuple[RequestBounds, Outer] | None = None

    def __enter__(self) -> str:
        if self._entered is not None:
            raise ConfigurationError("This request_scope is entered already: write request_scope(...) for each block.")
        origin = Origin.new(self._request_id, self._path)
        bounds = RequestBounds(origin)
        self._entered = bounds, bounds.enter()
        return origin.request_id

    def __exit__(self, *error: object) -> None:
        if self._entered is not None:
            (bounds, outer), self._entered = self._entered, None
            bounds.leave(outer)

    def __call__(self, function: F) -> F:
        """The function in a request of its own for each call. ``ConfigurationError`` for what cannot be in one."""
        if not callable(function):
            raise ConfigurationError(f"request_scope is for functions, not for {function!r}.")
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise ConfigurationError(
                f"request_scope cannot be around the generator {qualified_name(function)}: its body runs when the call "
                f"has returned. Put it around what reads the generator."
            )
        request = partial(RequestContext, self._request_id, self._path)

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            with request():
                result = function(*args, **kwargs)
            if inspect.iscoroutine(result):
                result.close()
                raise ConfigurationError(
                    f"{qualified_name(function)} is a plain function that returned a coroutine, whose body would run "
                    f"outside of the scope: decorate the async function itself."
                )
            return result

        @functools.wraps(function)
        async def acall(*args: Any, **kwargs: Any) -> Any:
            with request():
                return await function(*args, **kwargs)

        return acall if hooks.is_coroutine(function) else call  # type: ignore[return-value]
