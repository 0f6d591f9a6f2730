"""What a framework or a database library offers to locks: one :class:`Integration`, installed once.

``install(MyIntegration())`` where the framework's users import it anyway, before their functions are decorated.
Several integrations are installed side by side, and the order means nothing: each speaks only of its own
applications, functions, transactions and responses, and says None of everybody else's.

Where these come in: ``until`` left out, a lock ends with the function, or with the body of a streaming response that
it returns (``stream``); ``until="return"``, with the function, whatever it returns; ``until="commit"``, after the
commit of the transaction that the decorator opens around the function (``transactions``).
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Concatenate, Literal, NamedTuple, ParamSpec, Protocol, TypeAlias, TypeVar

from ..core import integrations
from ..core.errors import ConfigurationError, LockBusy
from ..core.integrations import Row, load_for
from ..core.registry import Registry

P = ParamSpec("P")
R = TypeVar("R")
#: A ``distlock_web.Lease``. Not imported: hooks are below it, for the keys of functions are made with them.
Lease: TypeAlias = Any
Until: TypeAlias = Literal["return", "commit"]
#: With which a function was called: a view perhaps by position, perhaps by name.
Args: TypeAlias = tuple[object, ...]
Kwargs: TypeAlias = Mapping[str, Any]

#: Whether the running code is in a framework's own context (an app's, for instance); ``none``: it has no such thing.
Context: TypeAlias = Literal["inside", "none", "outside"]


class TransactionManager(Protocol):
    """Opens and commits the transactions of one kind of database."""

    def mark(self, wrapper: Callable[..., Any], database: object) -> None:
        """The decorated function owns its transaction: keep the framework from opening one around it."""

    def context(self) -> Context:
        """Whether the running code is inside of the framework's own context.

        Asked for each call where several managers could be meant, because ``database=`` was left out: ``"inside"``
        is meant before ``"none"``, and that before ``"outside"``.
        """

    def refuse_open(self, function_name: str, database: object) -> None:
        """``ConfigurationError`` if a transaction is open already: its commit would come after the lock is gone.

        Asked before the lock is taken. ``function_name`` is for the message.
        """

    def run(self, function_name: str, call: Callable[[], R], lease: Lease, database: object) -> R:
        """Make the call in a transaction, extend the lease at its end, and commit; an error rolls back."""

    def run_open(self, function: Callable[..., Any], call: Callable[[], R], database: object) -> R:
        """Make a call of ``function`` that is not locked, as the framework would if ``mark`` had not told it."""


class RunningTask(Protocol):
    """The run of a task that a worker of a queue has begun."""

    async def begin(self, locked: object, scope: Any) -> Any:
        """A call of a locked function begins in it: the lock that came with its message is taken on, for that function.

        ``locked`` is what the function carries as ``__distlock__``, ``scope`` the call's, which holds nothing yet: it
        holds that lock then. Where nothing came, the scope is given back as it is; another one, if the lock was gone.
        ``BackendUnavailable`` if the store does not answer.
        """

    def keeps(self, scope: Any) -> bool:
        """The call with this scope has raised: whether its lock ends with the run, not here."""

    def retry(self, error: LockBusy) -> Exception:
        """Have the task run again when the lock may be free. What the function raises then, to end this run."""


class Asked(NamedTuple):
    """Who asks for what: a digest. ``before``: the one of the same request in format 1, which fewer words are in."""

    digest: str
    before: str


class Answer(NamedTuple):
    """What a call returns in place of its function's own result: wrapped, for that may be None."""

    value: Any


class WebQuestions:
    """What a web framework is asked. ``web/framework.py`` answers most of it from a few questions.

    ``args`` and ``kwargs`` are those of the call, ``locked`` what the decorated function carries as ``__distlock__``.
    """

    def app_registry(self) -> Registry | None:
        """The stores of the application that the running code belongs to, known by the context.

        They win over those of ``distlock_web.configure`` and of ``DISTLOCK_URL``. None: the code is outside of any
        application, or it has no stores of its own. Asked for every lock: be quick. A ``ConfigurationError`` is raised
        to the caller that takes the lock.
        """
        return None

    def why_no_registry(self) -> str:
        """In words, why the running code belongs to none of the applications that have stores; "" if none has any.

        Asked only for the error that says there is no store.
        """
        return ""

    def is_coroutine(self, function: Callable[..., Any]) -> bool:
        """Whether a call of the function gives a coroutine, though it is no ``async def``."""
        return False

    def check_function(self, function: Callable[..., Any]) -> None:
        """Raise ``ConfigurationError`` if the framework would call this function without the lock.

        Asked when a function is decorated.
        """

    def name_of(self, function: Callable[..., Any]) -> str | None:
        """The name of a function that the framework made of something else: of a class, by ``as_view()``.

        Its own name would be that of the wrapper, the same for all of them. A name that ends in ``(...)`` may
        stand for several functions: people see it, but no key is made of it.
        """
        return None

    def variables(self) -> Mapping[str, Callable[[], object]]:
        """What a key may name beside the arguments of its function: ``request``, where no argument is called so.

        Looked up when a function is decorated, called for each call of it.
        """
        return {}

    def request_of(self, args: Args, kwargs: Kwargs, locked: object) -> Any:
        """The request that a view of its own was called with; None: it is no view that was called.

        It has a ``method``, in capitals. Asked for views with ``methods=`` or ``when=``, and before a policy that is
        ``for_views``.
        """
        return None

    def not_found(self, args: Args, kwargs: Kwargs, locked: object) -> Exception | None:
        """What the framework raises for a URL that leads nowhere, if a view of its own was called with these arguments.

        Asked where a value of the key is not of its form: ``{pk:int}`` of ``abc``. None: ``KeyUnavailable`` is raised.
        """
        return None

    def is_failure(self, result: Any, args: Args, kwargs: Kwargs, locked: object) -> bool:
        """Whether what a locked function returned, called with ``args``, says that its work was not done: an error.

        Asked for each call of ``once``, and where ``hold_at_least`` keeps the lock after a success, unless ``success=``
        was given; with ``until="commit"``, inside of the open transaction. ``web/success.py`` has the rule.
        """
        return False

    def is_stream(self, result: Any, locked: object) -> bool:
        """Whether a locked function returned a streaming response of the framework's.

        Asked with ``until="commit"``, which releases the lock before the body: that is warned of, once. And of each
        generator, or the like, whose body has yet to run: one that no framework sends is refused.
        """
        return False

    def stream(self, result: Any, locked: object, lease: Lease) -> object | None:
        """The streaming response that a locked function returned, going on under its lock until its body is sent.

        None: the result is not one of the framework's. ``web/streaming.py`` has what wraps a body. Or an
        :class:`Answer` with what the function returned: its lock goes on, and other code ends it.
        """
        return None

    def streams(self, function: Callable[..., Any]) -> bool:
        """Whether it says that it returns a streaming response, by its annotation: ``once`` refuses it then."""
        return False

    async def asked(self, args: Args, kwargs: Kwargs, locked: object) -> Asked | str | None:
        """Who asks for what, as a digest, if a view of its own was called with these arguments: user, path, body.

        ``once`` keeps it with the answer, and answers no other. None: this call has no request. It is awaited where
        the locked function is asynchronous; elsewhere, as :meth:`answer_of`, it must not suspend.
        """
        return None

    async def answer_of(self, result: Any, args: Args, kwargs: Kwargs, locked: object) -> dict[str, Any] | None:
        """What ``once`` keeps of what a view of its own returned, called with ``args``: for :meth:`replay`, in JSON.

        None: no view of its own was called. No caller may be told another answer than the first, and the work is done.
        Of an answer that cannot be made again as it was, it keeps that it was not kept.
        """
        return None

    def replay(self, kept: dict[str, Any], args: Args, kwargs: Kwargs, locked: object) -> Answer | None:
        """The answer made again of what was kept of it; None: no view of its own was called."""
        return None


class DatabaseQuestions:
    """What a database library is asked."""

    def row_of(self, value: object) -> Row | None:
        """Which row an object of a database library stands for: its table or model, and its primary key.

        As a key it is that, ``("shop.order", (42,))`` is ``shop.order:42``. None in the primary key: it is not saved.
        Asked for what is no text, number or date.
        """
        return None

    async def loaded(self, value: Any) -> Any:
        """A value that a key has found in an asynchronous call: loaded now, if its first use would block the loop.

        Everything else is given back as it is.
        """
        return value

    def transactions(self, database: object) -> TransactionManager | None:
        """Who opens the transaction of ``until="commit"`` that ``database=`` means (None: it was left out)."""
        return None

    def open_transaction(self) -> str | None:
        """In words, the transaction that the running code is inside of, and that other code commits.

        Where there is one, a plain lock that is released in it causes a warning. Asked twice for every lock: be quick.
        """
        return None


class QueueQuestions:
    """What a queue of tasks is asked."""

    def running_task(self) -> RunningTask | None:
        """The task of its own that runs in this thread; None: there is none."""
        return None


class Integration(WebQuestions, DatabaseQuestions, QueueQuestions):
    """What a framework or a library can offer; each method has a default that offers nothing.

    None and False mean: not mine. The next integration is asked then.
    """


F = TypeVar("F", bound=Callable[..., Any])


def for_views(policy: F) -> F:
    """Mark an ``on_busy`` or ``on_backend_error`` that answers a client: the call of what is no view raises the error.

    For its caller would take the answer for what the function returns, and go on as if its work was done.
    """
    policy.for_views = True  # type: ignore[attr-defined]
    return policy


#: What knows tasks once the library is there.
_WITH_TASKS = {"celery": "distlock_web.celery"}


def install(integration: Integration) -> None:
    """Use this integration from now on. Once is enough; a second time changes nothing."""
    installed = integrations.installed
    if any(integration in known for known in installed.answering.values()):
        return
    kind = type(integration)
    answered = [name for name in dir(Integration) if getattr(kind, name) is not getattr(Integration, name)]
    for question in answered:
        if not question.startswith("_"):
            installed.answering.setdefault(question, []).append(integration)
    if "app_registry" in answered:
        installed.registries.append(integration.app_registry)
        installed.why_no_registry.append(integration.why_no_registry)
    if "open_transaction" in answered:
        installed.open_transactions.append(integration.open_transaction)
    if "row_of" in answered:
        installed.rows.append(integration.row_of)


def _answering(question: str) -> list[Any]:
    return integrations.installed.answering.get(question, [])


def offered(question: Callable[..., Any]) -> bool:
    """Whether anybody can answer this question of :class:`Integration`."""
    return bool(_answering(question.__name__))


def first(question: Callable[Concatenate[Any, P], R | None], *args: P.args, **kwargs: P.kwargs) -> R | None:
    """The first answer to this question of :class:`Integration`: ``first(Integration.name_of, function)``.

    Falsehood is none: it is what is said of what belongs to others.
    """
    # What `_answering` says, without that call: each call of a locked function asks several of these.
    for each in integrations.installed.answering.get(question.__name__, ()):
        answer: R | None = getattr(each, question.__name__)(*args, **kwargs)
        if answer is not None and answer is not False:
            return answer
    return None


async def afirst(
    question: Callable[Concatenate[Any, P], Coroutine[Any, Any, R | None]], *args: P.args, **kwargs: P.kwargs
) -> R | None:
    """The same of a question whose answer is awaited."""
    for each in integrations.installed.answering.get(question.__name__, ()):
        answer: R | None = await getattr(each, question.__name__)(*args, **kwargs)
        if answer is not None:
            return answer
    return None


def is_coroutine(function: Callable[..., Any]) -> bool:
    """Whether a call of the function gives a coroutine."""
    return inspect.iscoroutinefunction(function) or bool(first(Integration.is_coroutine, function))


def check_function(function: Callable[..., Any]) -> None:
    """Raise ``ConfigurationError`` if a framework would call this function without the lock."""
    load_for(_WITH_TASKS)  # a worker imports the tasks, and perhaps nothing else of ours
    first(Integration.check_function, function)


async def loaded(value: Any) -> Any:
    """The value, which blocks no event loop from now on."""
    for each in _answering("loaded"):
        value = await each.loaded(value)
    return value


def variables() -> dict[str, Callable[[], object]]:
    """What a key may name beside the arguments of its function."""
    readers: dict[str, list[Callable[[], object]]] = {}
    for each in _answering("variables"):
        for name, read in each.variables().items():
            readers.setdefault(name, []).append(read)
    return {name: reads[0] if len(reads) == 1 else partial(_whichever, reads) for name, reads in readers.items()}


def _whichever(reads: list[Callable[[], object]]) -> object:
    """Of several frameworks in one process, the one whose request runs. Flask's proxy is false where none does."""
    for read in reads[:-1]:
        with suppress(LookupError):
            if found := read():
                return found
    return reads[-1]()


def know_tasks() -> bool:
    """Whether anybody can say which task runs. What is installed is loaded: the tasks may be imported after this."""
    for library, ours in _WITH_TASKS.items():
        with suppress(ImportError, ValueError):  # a module of the project's own has that name
            if find_spec(library) is not None:
                import_module(ours)
    return offered(Integration.running_task)


#: What makes the views of a framework known here, by the module that shows that the process has it.
_FRAMEWORKS = {
    "django": '"distlock_web.django" has to be in INSTALLED_APPS',
    "flask": "distlock_web.flask has to be imported",
    "starlette": "distlock_web.starlette has to be imported",
}


def why_unknown() -> str:
    """For the error of a function that would be a view: of which framework the integration may be missing."""
    loaded = [how for module, how in _FRAMEWORKS.items() if module in sys.modules]
    how = ", or ".join(loaded) or "the integration of its framework has to be installed"
    return f"If it is a view, {how}, before it is decorated."


def transaction_manager(database: object, function_name: str) -> TransactionManager:
    """Who opens the transaction of ``until="commit"``. Raises ``ConfigurationError`` if no library can."""
    managers = [found for each in _answering("transactions") if (found := each.transactions(database)) is not None]
    if managers:
        return managers[0] if len(managers) == 1 else _Meant(managers)
    raise ConfigurationError(
        f'{function_name}: until="commit" needs to know the transaction. Django: put "distlock_web.django" into '
        f"INSTALLED_APPS (database= names an alias). SQLAlchemy: import distlock_web.sqlalchemy and give "
        f"database=session; with Flask-SQLAlchemy and distlock_web.flask it may be left out."
    )


_PREFERRED: tuple[Context, ...] = ("inside", "none", "outside")


class _Meant:
    """Several managers, as of Django and Flask-SQLAlchemy in one process; ``database=`` was left out.

    Which of them is meant is decided for each call, by the context that it runs in.
    """

    def __init__(self, managers: list[TransactionManager]) -> None:
        self._managers = managers

    def mark(self, wrapper: Callable[..., Any], database: object) -> None:
        for manager in self._managers:
            manager.mark(wrapper, database)

    def context(self) -> Context:
        return self._one().context()

    def refuse_open(self, function_name: str, database: object) -> None:
        self._one().refuse_open(function_name, database)

    def run(self, function_name: str, call: Callable[[], R], lease: Lease, database: object) -> R:
        return self._one().run(function_name, call, lease, database)

    def run_open(self, function: Callable[..., Any], call: Callable[[], R], database: object) -> R:
        return self._one().run_open(function, call, database)

    def _one(self) -> TransactionManager:
        return min(self._managers, key=lambda manager: _PREFERRED.index(manager.context()))
