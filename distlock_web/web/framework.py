"""What a web framework says of itself, and what follows from that: the base class of every integration of one.

``locks/hooks.py`` has what locks ask, of web frameworks, databases and queues alike. :class:`WebIntegration` answers
what is asked of a web framework from a few questions of its own, and :func:`refusal` is what a client is told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from ..core.request_id import current_request_id
from ..locks import hooks
from ..locks.call import LockedFunction
from ..locks.hooks import Args, Asked, Integration, Kwargs
from ..locks.lease import Lease
from ..locks.plain_values import unpack
from ..locks.wrapping import is_below, undecorated
from .error_responses import OFFERED_TO_PROGRAMS, ErrorResponse, Headers, Refusal, error_response, log_refused, offered
from .kept_answers import Replay, keep, keep_value, replay, returned_class, warn_of_lost
from .streaming import StreamLock
from .success import is_failure


class Given(NamedTuple):
    """A response, as its client gets it."""

    status: int
    headers: Iterable[tuple[str, str]] = ()
    body: bytes | None = None  #: None: it is streamed, or not asked for

    @property
    def location(self) -> str | None:
        return next((value for name, value in self.headers if name.lower() == "location"), None)


class WebIntegration(Integration):
    """A web framework: a tuple of classes and the questions below, from which the questions of locks are answered.

    ``request`` is whatever object the framework has for that, with a ``method`` in capitals. ``locked`` is what the
    decorated function carries as ``__distlock__``.
    """

    #: The classes of streaming responses: what ``once`` refuses as an annotation, and a lock goes on for.
    streaming: tuple[type, ...] = ()

    # What a framework says ------------------------------------------------------------------------------------------

    def called_view(self, args: Args, kwargs: Kwargs, locked: Any) -> Any | None:
        """The running request, if it is its view that was called so. None: it is a helper, a task, another's view.

        That is the question behind all others. Where the arguments do not tell, ask
        :func:`is_view` and :func:`is_hidden_view` of the function that the request was routed to.
        """
        raise NotImplementedError

    def answer(self, result: Any, request: Any | None, locked: Any) -> Given | None:
        """What a client gets of what a function returned; None: that is not known, or no response.

        ``request``: of the view that was called; None where none was.
        """
        raise NotImplementedError

    def respond(self, answer: Replay, request: Any, locked: Any) -> Any:
        """A response made of these values. A view returns it in place of the first one."""
        raise NotImplementedError

    def send_under_lock(self, result: Any, lock: StreamLock) -> Any:
        """The streaming response, its body wrapped in ``LockedBody(lock, …)`` or ``LockedAsyncBody``."""
        raise NotImplementedError

    def no_such_page(self) -> Exception:
        """What the framework raises for a 404."""
        raise NotImplementedError

    async def who_asks(self, request: Any, args: Args, kwargs: Kwargs, locked: Any) -> Asked | str | None:
        """For ``once``: a digest of who asks for what; ``web/asked.py`` has its parts. None: this cannot have that."""
        return None

    def in_request(self) -> bool:
        """Whether a request of its own runs here, whatever was called: what a hidden view returns is not kept."""
        return False

    def login_page(self) -> str:
        """Where a redirect leads a user who is not logged in; "" if that is not known."""
        return ""

    # What follows from that -------------------------------------------------------------------------------------------

    def request_of(self, args: Args, kwargs: Kwargs, locked: object) -> Any:
        return self.called_view(args, kwargs, locked)

    def not_found(self, args: Args, kwargs: Kwargs, locked: object) -> Exception | None:
        return None if self.called_view(args, kwargs, locked) is None else self.no_such_page()

    def is_failure(self, result: Any, args: Args, kwargs: Kwargs, locked: Any) -> bool:
        given = self.answer(result, self.called_view(args, kwargs, locked), locked)
        if given is None:
            return False
        return is_failure(given.status, given.location, self.login_page(), is_for_others=locked.once is not None)

    def streams(self, function: Callable[..., Any]) -> bool:
        return issubclass(returned_class(function), self.streaming)

    def is_stream(self, result: Any, locked: object) -> bool:
        return isinstance(result, self.streaming)

    def stream(self, result: Any, locked: object, lease: Lease) -> Any | None:
        return self.send_under_lock(result, StreamLock(lease)) if self.is_stream(result, locked) else None

    async def asked(self, args: Args, kwargs: Kwargs, locked: Any) -> Asked | str | None:
        request = self.called_view(args, kwargs, locked)
        return None if request is None else await self.who_asks(request, args, kwargs, locked)

    async def answer_of(self, result: Any, args: Args, kwargs: Kwargs, locked: Any) -> dict[str, Any] | None:
        request = self.called_view(args, kwargs, locked)
        if request is not None:
            return await self.kept_of(result, request, locked)
        if self.in_request():
            warn_of_lost(result, locked)
        return None

    async def kept_of(self, result: Any, request: Any, locked: Any) -> dict[str, Any] | None:
        """What ``once`` keeps of what this view returned."""
        given = self.answer(result, request, locked)
        if given is None:
            return keep_value(locked.name, result)
        return keep(locked.name, given.status, given.headers, given.body)

    def replay(self, kept: dict[str, Any], args: Args, kwargs: Kwargs, locked: Any) -> hooks.Answer | None:
        request = self.called_view(args, kwargs, locked)
        return None if request is None else self.replayed(kept, request, locked)

    def replayed(self, kept: dict[str, Any], request: Any, locked: Any) -> hooks.Answer:
        """The same as the view returns it."""
        return hooks.Answer(unpack(kept["value"]) if "value" in kept else self.respond(replay(kept), request, locked))


def is_view(locked: object, views: Iterable[Any]) -> bool:
    """Whether the locked function is one of these, which a request was routed to, whatever decorators are around it."""
    # Not by ``__distlock__``: only the outermost of several is seen, and none where each request decorates anew.
    return isinstance(locked, LockedFunction) and any(undecorated(view) is locked.function for view in views)


def is_hidden_view(locked: Any, views: Iterable[Any]) -> bool:
    """Whether a function with ``once`` is that below a decorator without ``functools.wraps``, which hides it.

    What such a one is around has a key of the request, and no ``result=True``: else it is a function that the view
    calls, whose value is no response.
    """
    if locked.once is None or "request" not in locked.keys.variables or locked.once.keeps_result:
        return False
    return any(is_below(view, locked.function) for view in views)


class Refused(NamedTuple):
    """The whole answer to a request that cannot run under its lock."""

    status: int
    headers: dict[str, str]  #: with the content type
    body: str


class RefusedRequest(NamedTuple):
    """What has to be known of it."""

    method: str | None
    path: str
    headers: Headers
    media_type: str  #: of its body
    for_programs: bool = False  #: its view speaks JSON to who does not ask for a page
    request_id: str | None = None  #: None: that of the running code


def logged(error: Refusal, request: RefusedRequest) -> ErrorResponse:
    """The answer as a value, and a line in the log."""
    log_refused(error, request.method, request.path)
    return error_response(error, request.request_id or current_request_id())


def refusal(
    error: Refusal,
    request: RefusedRequest,
    media_type: str | None = None,
    own_page: Callable[[ErrorResponse], str | None] = lambda error: None,
) -> Refused:
    """What to answer to a request that was refused with this error, and a line in the log.

    HTML or JSON, by what the client accepts, or this ``media_type`` in any case; and what htmx needs. ``own_page``: the
    project's own page of HTML, if it has one.
    """
    answer = logged(error, request)
    types = OFFERED_TO_PROGRAMS if request.for_programs else offered(request.headers, request.media_type)
    content_type, body = answer.body(media_type or preferred(request.headers.get("Accept"), types))
    if content_type.startswith("text/html"):
        body = own_page(answer) or body
    headers = {"Content-Type": content_type, **answer.headers, "Vary": "Accept, HX-Request"}
    if request.headers.get("HX-Request") == "true":
        headers.update(answer.htmx_headers)
    return Refused(answer.status, headers, body)


def preferred(accept: str | None, types: tuple[str, ...]) -> str:
    """Which of these types a client would rather have; the first, if it says nothing, or wants none of them.

    The more special of its words counts, and of two that it wants alike the one that it has named more exactly.
    """
    said = [_range(each) for each in accept.split(",")] if accept else []

    def wanted(media_type: str) -> tuple[float, int]:
        forms = (media_type, media_type.partition("/")[0] + "/*", "*/*")
        found = [(2 - forms.index(name), quality) for name, quality in said if name in forms]
        exact, quality = max(found, default=(0, 0.0))
        return quality, exact

    best = max(types, key=wanted)
    return best if wanted(best)[0] > 0 else types[0]


def _range(text: str) -> tuple[str, float]:
    name, *parameters = (each.strip().lower() for each in text.split(";"))
    for each in parameters:
        if each.startswith("q="):
            try:
                return name, float(each[2:])
            except ValueError:
                return name, 0.0
    return name, 1.0
