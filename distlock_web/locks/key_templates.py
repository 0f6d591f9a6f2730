"""The decorator's ``key=``: templates over a function's arguments, checked when they are made."""

from __future__ import annotations

import inspect
import re
import string
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from functools import lru_cache, partial
from types import MethodType
from typing import Any, TypeAlias

from ..core.errors import ConfigurationError
from ..core.keys import literal, value

#: A format string over the function's arguments, a callable with the function's signature, or several of these.
Key: TypeAlias = "str | Callable[..., Any] | Iterable[str | Callable[..., Any]]"

# Where an object's text says only where in memory it is.
_ADDRESS = re.compile(r" at 0x[0-9A-Fa-f]+")


class Template:
    """A format string over a function's arguments: ``order:{order_id}``, ``cart:{request.user.pk}``.

    Checked when it is made: a field that the function cannot fill is refused at import, not at the first request.
    """

    def __init__(self, text: str, signature: inspect.Signature, function: str) -> None:
        self.text = text
        self.function = function
        if not text:
            raise ConfigurationError(f"{function}: the key is empty. Leave it out to use the function's name.")
        try:
            self.parts = list(string.Formatter().parse(text))
        except ValueError as error:
            raise ConfigurationError(f"{function}: the key {text!r} is not a format string: {error}.") from error
        known = {name for name, each in signature.parameters.items() if each.kind is not each.VAR_KEYWORD}
        rest = signature.parameters.keys() - known
        for field in self.fields():
            root = self._root(field)
            if not root:
                raise ConfigurationError(f"{function}: the key {text!r} has a field without a name.")
            if root in rest:
                raise ConfigurationError(f"{function}: the key {text!r} names **{root}: name an argument in it, {{x}}.")
            if root not in known and not rest:
                names = ", ".join(signature.parameters) or "none"
                raise ConfigurationError(
                    f"{function}: the key {text!r} names {root!r}, which is no argument of it (it has: {names})."
                )
        self._check_separated()
        self.separators = "".join({char for fixed, *_ in self.parts for char in fixed if not char.isalnum()} | {":"})

    def fields(self) -> Iterator[str]:
        for _, field, spec, conversion in self.parts:
            if field is not None:
                if spec and "{" in spec:
                    raise ConfigurationError(f"{self.function}: the key {self.text!r} nests fields.")
                if conversion not in (None, "s", "r", "a"):
                    raise ConfigurationError(
                        f"{self.function}: the key {self.text!r} has '!{conversion}'; there are !s, !r, !a."
                    )
                yield field

    def _root(self, field: str) -> str:
        try:
            return _split(field)[0]
        except ValueError as error:
            raise ConfigurationError(
                f"{self.function}: the key {self.text!r} has the field {{{field}}}, which cannot be read: {error}."
            ) from error

    def _check_separated(self) -> None:
        between, seen = "", False
        for fixed, field, *_ in self.parts:
            between += fixed  # an escaped brace ends a part without a field
            if field is None:
                continue
            # What is escaped even outside of values ('%', '~', a tab) separates nothing: a value may end in it.
            if seen and all(char.isalnum() or literal(char) != char for char in between):
                raise ConfigurationError(
                    f"{self.function}: the key {self.text!r} needs a separator such as ':' between its fields, "
                    f"or two different calls could mean one lock."
                )
            between, seen = "", True

    async def name(self, arguments: Mapping[str, Any], asynchronous: bool) -> str:
        pieces = []
        for fixed, field, spec, conversion in self.parts:
            pieces.append(literal(fixed))
            if field is not None:
                found = await self._lookup(field, arguments, asynchronous)
                pieces.append(value(self._text(found, field, spec, conversion), self.separators))
        return "".join(pieces)

    async def _lookup(self, field: str, arguments: Mapping[str, Any], asynchronous: bool) -> Any:
        root, rest = _split(field)
        try:
            found = arguments[root]
            for is_attribute, step in rest:
                if not is_attribute:
                    found = found[step]
                    continue
                # Django's convention: `request.user` reads the database, `await request.auser()` is its async twin.
                twin = getattr(found, f"a{step}", None) if asynchronous else None
                found = await twin() if inspect.iscoroutinefunction(twin) else getattr(found, str(step))
        except (KeyError, AttributeError, IndexError, TypeError) as error:
            raise ConfigurationError(
                f"{self.function}: the field {{{field}}} of the key {self.text!r} cannot be filled: "
                f"{type(error).__name__}: {error}."
            ) from error
        return found

    def _text(self, found: Any, field: str, spec: str | None, conversion: str | None) -> str:
        if found is None:
            raise ConfigurationError(
                f"{self.function}: the field {{{field}}} of the key {self.text!r} is None; "
                f"everybody without a value would share one lock."
            )
        if type(found) is int and not spec and not conversion:
            return str(found)
        formatter = string.Formatter()
        try:
            text = str(formatter.format_field(formatter.convert_field(found, conversion), spec or ""))
        except (ValueError, TypeError) as error:
            raise ConfigurationError(
                f"{self.function}: the field {{{field}}} of the key {self.text!r} cannot be written: {error}."
            ) from error
        if isinstance(found, (set, frozenset)) or (not isinstance(found, str) and _ADDRESS.search(text)):
            raise ConfigurationError(
                f"{self.function}: the field {{{field}}} of the key {self.text!r} is a {type(found).__name__} object, "
                f"whose text differs in every process: name an attribute of it."
            )
        return text


@lru_cache(maxsize=1024)
def _split(field: str) -> tuple[str, list[tuple[bool, str | int]]]:
    from _string import formatter_field_name_split  # type: ignore[import-not-found]  # what string.Formatter uses

    root, rest = formatter_field_name_split(field)
    return str(root), list(rest)


class KeyTemplates:
    """What a decorator's ``key`` says, bound to its function: one or several templates or callables."""

    def __init__(self, key: Key | None, function: Callable[..., Any], *, asynchronous: bool) -> None:
        self.function = _qualified_name(function)
        self.asynchronous = asynchronous
        self.signature = _signature(function)
        if key is None:
            key = self._own_name(function)
        if not isinstance(key, (str, Iterable)) and not callable(key):
            raise ConfigurationError(f"{self.function}: a key is a string or a callable, not {key!r}.")
        items = [key] if isinstance(key, str) or callable(key) else list(key)
        if not items:
            raise ConfigurationError(f"{self.function}: the list of keys is empty.")
        self.makers = [self._maker(item) for item in items]
        self.roots = {
            _split(field)[0] for maker in self.makers if isinstance(maker, Template) for field in maker.fields()
        }
        self.parameters = {
            name: (place, parameter) for place, (name, parameter) in enumerate(self.signature.parameters.items())
        }
        self.fixed = self._fixed()

    def _own_name(self, function: Callable[..., Any]) -> str:
        if self.function.endswith(("?", "<lambda>")):
            raise ConfigurationError(f"{function!r} has no name of its own, and would share its lock: give it a key=.")
        return literal(self.function).replace("<locals>.", "")

    def _maker(self, item: str | Callable[..., Any]) -> Template | Callable[..., Any]:
        if isinstance(item, str):
            return Template(item, self.signature, self.function)
        if not callable(item):
            raise ConfigurationError(f"{self.function}: a key is a string or a callable, not {item!r}.")
        if inspect.iscoroutinefunction(item) and not self.asynchronous:
            raise ConfigurationError(f"{self.function}: an async key function needs an async function to be locked.")
        return item

    def _fixed(self) -> tuple[str, ...] | None:
        """The names, where they are the same for every call."""
        texts = []
        for maker in self.makers:
            if not isinstance(maker, Template) or any(True for _ in maker.fields()):
                return None
            texts.append("".join(literal(fixed) for fixed, *_ in maker.parts))
        return tuple(texts)

    async def names(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str, ...]:
        """The keys of one call, escaped, without a prefix."""
        if self.fixed is not None:
            return self.fixed
        bound: Mapping[str, Any] | None = None
        found = []
        for maker in self.makers:
            if isinstance(maker, Template):
                if bound is None:
                    bound = self._picked(args, kwargs)
                found.append(await maker.name(bound, self.asynchronous))
            else:
                found.extend(await self._called(maker, args, kwargs))
        return tuple(found)

    async def _called(self, maker: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[str]:
        made = maker(*args, **kwargs)
        if isinstance(made, Awaitable):
            made = await made
        several = isinstance(made, Iterable) and not isinstance(made, (str, bytes, Mapping))
        made = list(made) if several else [made]
        if not made or any(not isinstance(key, str) or not key for key in made):
            raise ConfigurationError(f"{self.function}: the key function gave {made!r}; a key is a non-empty string.")
        return [literal(key) for key in made]

    def _picked(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Mapping[str, Any]:
        """The arguments that the keys name, where they are found at once: to bind them all takes four times as long."""
        picked = {}
        for root in self.roots:
            place, parameter = self.parameters.get(root, (0, None))
            if parameter is None or parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
                return self._bind(args, kwargs)
            if root in kwargs:
                picked[root] = kwargs[root]
            elif parameter.kind is parameter.POSITIONAL_OR_KEYWORD and place < len(args):
                picked[root] = args[place]
            else:
                return self._bind(args, kwargs)
        return picked

    def _bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Mapping[str, Any]:
        bound = self.signature.bind(*args, **kwargs)  # a TypeError here is the caller's, as without us
        bound.apply_defaults()
        arguments = dict(bound.arguments)
        for parameter in self.signature.parameters.values():
            if parameter.kind is parameter.VAR_KEYWORD:
                # A positional-only parameter's name may come again in **kwargs, sent by anybody: it must not win.
                arguments = {**arguments.pop(parameter.name), **arguments}
        return arguments


def bound_method(function: Any) -> MethodType | None:
    """The method of an object that Django's ``method_decorator`` wants decorated: it hands us a partial of it."""
    inner = _unwrapped(function)
    return inner.func if isinstance(inner, partial) and isinstance(inner.func, MethodType) else None


def _unwrapped(function: Any) -> Any:
    """What other decorators have wrapped; never past a partial.

    ``method_decorator``'s partial claims to be the method itself (``__wrapped__``), which expects a ``self`` that never
    comes.
    """
    return inspect.unwrap(function, stop=lambda at: isinstance(at, partial) or hasattr(at, "__signature__"))


def _signature(function: Callable[..., Any]) -> inspect.Signature:
    method = bound_method(function)
    try:
        return inspect.signature(_unwrapped(function) if method is None else method)
    except (ValueError, TypeError) as error:
        raise ConfigurationError(
            f"{function!r} does not tell its arguments ({error}): lock a function around it."
        ) from error


def _qualified_name(function: Callable[..., Any]) -> str:
    method = bound_method(function)
    if method is not None:
        # Every class that inherits a method has the same function: as a key its name would be one lock for them all.
        owner = type(method.__self__)
        return f"{owner.__module__}.{owner.__qualname__}.{method.__name__}"
    return f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', '?')}"
