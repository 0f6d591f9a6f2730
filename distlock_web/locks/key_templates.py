"""The decorator's ``key=``: templates over a function's arguments, checked when they are made."""

from __future__ import annotations

import inspect
import re
import string
import warnings
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias
from uuid import UUID

from ..core.errors import ConfigurationError, KeyUnavailable, Part
from ..core.keys import (
    SEPARATORS,
    escape_literal,
    escape_value,
    key_part,
    must_escape,
    refuse_forgotten_f,
    text_of,
    whole_keys,
)
from ..core.setting import is_async
from . import hooks
from .function_names import own_name, qualified_name, signature_of

#: A template over the function's arguments, a callable with the function's signature, or several of these.
Key: TypeAlias = "str | Callable[..., Any] | Iterable[str | Callable[..., Any]]"
#: The same in front of all options, where a callable is the function to be locked.
KeyInFront: TypeAlias = "str | Iterable[str | Callable[..., Any]] | None"

# Between two choices of one field; not inside of an [index].
_CHOICE = re.compile(r"\|(?![^\[]*\])")


def _whole_number(text: str) -> str:
    if "_" in text:  # to Python '1_0' is 10, to MySQL 1
        raise ValueError(text)
    return str(int(text))


#: How a text becomes the one spelling of what it means: ``{pk:int}``. ``ValueError``: it means nothing of the kind.
CONVERSIONS: Mapping[str, Callable[[str], str]] = {
    "int": _whole_number,  # a database takes '01', '+1', ' 1' and '١' for 1, too
    "lower": str.lower,
    "str": str,  # says that the text is meant as it is
    "uuid": lambda text: str(UUID(text)),
}


# The string of a Structured Field (RFC 9651), with parameters or without.
_QUOTED = re.compile(r'"((?:[^"\\]|\\["\\])*)"(?: *;.*)?')


def _unquoted(text: str) -> str:
    """A header's key, with the quotes that it should have, or without them."""
    text = text.strip(" \t")
    quoted = _QUOTED.fullmatch(text)
    return text if quoted is None else re.sub(r'\\(["\\])', r"\1", quoted[1])


#: Where a client says a key of its own, by the name of the item. An empty one is none.
_KEYS_OF_CLIENTS: Mapping[str, Callable[[str], str]] = {
    "idempotency-key": _unquoted,
    "http_idempotency_key": _unquoted,
    "once": str,
}

#: What a request has, and what an item of it is called where a client is told that it is missing.
_SENT: Mapping[str, Part] = {
    "headers": "header",
    **dict.fromkeys(("POST", "form", "data", "json", "values", "FILES", "files"), "field"),
}


def _sent_by_client(steps: list[tuple[bool, str | int]]) -> tuple[Part, str] | None:
    """The item of a request that these steps lead to: ``("header", "Idempotency-Key")``; None if it is no such."""
    match steps:
        case [(True, "META"), (False, str(name))] if name.startswith("HTTP_"):
            return "header", name.removeprefix("HTTP_").replace("_", "-").title()
        case [(True, str(part)), (False, str(name))] if part in _SENT:
            return _SENT[part], name
    return None


class MalformedValue(KeyUnavailable):
    """A value of the call is not of the form that the key's conversion asks for: no number for ``{pk:int}``."""


#: Arguments that stand in no key, so that a word of it is not meant for them.
_NO_VALUES = ("self", "cls", "request")

#: What a key may name where a framework is imported that has it; the last one with Flask-Login.
_OF_REQUESTS = ("request", "session", "g", "current_user")

#: Characters of a template in events, and so in metrics.
MAX_SHOWN_CHARS = 120


class Field:
    """One field of a template, ``{request.user.pk}``; with a second choice, ``{request.user.pk|request.META[key]}``."""

    def __init__(self, text: str, spec: str, shape: str | None, function: str, key: str) -> None:
        where = f"{function}: the key {key!r}"
        self.conversion = f":{spec}" if spec else ""
        self.where = f"{function}: the field {{{text}{self.conversion}}} of the key {key!r}"
        self.choices = [self._path(choice) for choice in _CHOICE.split(text)]
        if "{" in spec:
            raise ConfigurationError(f"{where} nests fields.")
        if shape is not None or (spec and spec not in CONVERSIONS):
            raise ConfigurationError(
                f"{where} has '{f'!{shape}' if shape else ''}{self.conversion}', which is not a conversion; there are "
                f"{', '.join(f':{name}' for name in CONVERSIONS)}. For anything else use a key function."
            )
        self._convert = CONVERSIONS.get(spec)
        self._missing = [sent for _, rest in self.choices if (sent := _sent_by_client(rest)) is not None]
        if not all(root for root, _ in self.choices):
            raise ConfigurationError(f"{where} has a field without a name.")

    @property
    def roots(self) -> list[str]:
        return [root for root, _ in self.choices]

    def _path(self, choice: str) -> tuple[str, list[tuple[bool, str | int]]]:
        from _string import formatter_field_name_split  # type: ignore[import-not-found]  # what string.Formatter uses

        try:
            root, rest = formatter_field_name_split(choice)
            steps = list(rest)
        except ValueError as error:
            raise ConfigurationError(f"{self.where} cannot be read: {error}.") from error
        for is_attribute, step in steps:
            # As in ``str.format`` an item has no quotes: with them it would be missing in every request.
            if isinstance(step, str) and (not step.isidentifier() if is_attribute else step[:1] in "'\""):
                raise ConfigurationError(
                    f"{self.where} has {step!r}, but a field has attributes, and items without quotes, such as "
                    f"{{request.headers[Idempotency-Key]}}, and calls nothing. For anything else use a key function."
                )
        return str(root), steps

    async def fill(self, arguments: Mapping[str, Any], asynchronous: bool, separators: str) -> str:
        """Its value, escaped. A second choice has a ``|`` in front, which no value can have: so they never meet."""
        missing: BaseException | None = None
        for place, (root, rest) in enumerate(self.choices):
            try:
                found = arguments[root]
                if rest:
                    found = await self._lookup(found, rest, asynchronous)
            except LookupError as error:
                missing = error.__cause__ if isinstance(error, _NoItems) else error
                continue
            part = self._written(found, separators)
            if part is not None:
                return "|" * place + part
        why = "is None" if missing is None else f"is missing: {type(missing).__name__}: {missing}"
        raise KeyUnavailable(
            f"{self.where} {why}; all callers without a value would share one lock. The field may name a second "
            f"choice after a '|'.",
            missing=self._missing,
        ) from missing

    async def _lookup(self, found: Any, steps: list[tuple[bool, str | int]], asynchronous: bool) -> Any:
        try:
            for is_attribute, step in steps:
                if found is None:
                    return None
                if not is_attribute:
                    found = _item(found, step)
                    continue
                found = getattr(found, str(step))
                if asynchronous:
                    found = await hooks.loaded(found)
        except (AttributeError, TypeError) as error:
            raise ConfigurationError(f"{self.where} cannot be filled: {type(error).__name__}: {error}.") from error
        return found

    def _written(self, found: Any, separators: str) -> str | None:
        if self._convert is not None and (text := text_of(found)) is not None:
            try:
                return escape_value(self._convert(text), separators)
            except ValueError as error:
                raise MalformedValue(f"{self.where} cannot be made of {text[:MAX_SHOWN_CHARS]!r}.") from error
        part = key_part(found, self.where, separators)
        if part is not None and self._convert is not None:
            raise ConfigurationError(f"{self.where} stands for a row, which is a whole key: leave the conversion out.")
        return part


class _NoItems(LookupError):
    """What has no items was asked for one: a client's JSON is a list or a number, and no object."""


def _item(found: Any, step: str | int) -> Any:
    try:
        item = found[step]
    except TypeError as error:
        raise _NoItems from error
    read = _KEYS_OF_CLIENTS.get(step.lower()) if isinstance(step, str) and isinstance(item, str) else None
    return item if read is None else read(item) or None


class Template:
    """A text with fields, over a function's arguments: ``order:{order_id:int}``, ``cart:{request.user.pk}``.

    Checked when it is made: a field that the function cannot fill is refused at import, not at the first request.
    """

    def __init__(self, text: str, signature: inspect.Signature, function: str) -> None:
        self.where = f"{function}: the key {text!r}"
        if not text:
            raise ConfigurationError(f"{function}: the key is empty. Leave it out to use the function's name.")
        try:
            parsed = list(string.Formatter().parse(text))
        except ValueError as error:
            raise ConfigurationError(f"{self.where} is not a template: {error}.") from error
        #: Fixed text, and the field after it.
        self.parts = [
            (fixed, None if field is None else Field(field, spec or "", conversion, function, text))
            for fixed, field, spec, conversion in parsed
        ]
        self._escaped = [(escape_literal(fixed), field) for fixed, field in self.parts]
        for root in self.roots:
            self._check_root(root, signature)
        self.separators = SEPARATORS + "".join(map(self._separators, self._between()))
        if any("|" in fixed for fixed, _ in self.parts) and any(len(field.choices) > 1 for field in self.fields):
            raise ConfigurationError(
                f"{self.where} has a '|' both outside of a field and in one, where it separates choices: use another "
                f"separator outside."
            )

    @property
    def fields(self) -> list[Field]:
        return [field for _, field in self.parts if field is not None]

    @property
    def roots(self) -> set[str]:
        return {root for field in self.fields for root in field.roots}

    def _check_root(self, root: str, signature: inspect.Signature) -> None:
        known = {name for name, each in signature.parameters.items() if each.kind is not each.VAR_KEYWORD}
        rest = signature.parameters.keys() - known
        if root in rest:
            raise ConfigurationError(f"{self.where} names **{root}: name an argument in it, {{x}}.")
        if root not in known and not rest and root not in hooks.variables():
            names = ", ".join(signature.parameters) or "none"
            unknown = f" {hooks.why_unknown()}" if root in _OF_REQUESTS else ""
            raise ConfigurationError(
                f"{self.where} names {root!r}, which is not an argument of it (it has: {names}).{unknown}"
            )

    def _between(self) -> Iterator[str]:
        """The fixed text between every two fields."""
        between, seen = "", False
        for fixed, field in self.parts:
            between += fixed  # an escaped brace ends a part without a field
            if field is None:
                continue
            if seen:
                yield between
            between, seen = "", True

    def _separators(self, between: str) -> str:
        """What no value may have, so that it is known where this text stands in a name."""
        if any(char in SEPARATORS for char in between):
            return ""
        # What is escaped even outside of values ('%', '~', a tab) separates nothing: a value may end in it.
        found = "".join(char for char in between if not (char.isalnum() or must_escape(char)))
        if not found:
            raise ConfigurationError(
                f"{self.where} needs a separator such as ':' between its fields, or two different calls could mean "
                f"one lock."
            )
        return found

    @property
    def fixed(self) -> str | None:
        """The name, if it is the same for every call."""
        return None if self.fields else "".join(fixed for fixed, _ in self._escaped)

    async def name(self, arguments: Mapping[str, Any], asynchronous: bool) -> str:
        pieces = []
        for fixed, field in self._escaped:
            pieces.append(fixed)
            if field is not None:
                pieces.append(await field.fill(arguments, asynchronous, self.separators))
        return "".join(pieces)


class KeyTemplates:
    """What a decorator's ``key`` says, bound to its function: one or several templates or callables."""

    def __init__(self, key: Key | None, function: Callable[..., Any], *, asynchronous: bool) -> None:
        self.function = qualified_name(function)
        self.asynchronous = asynchronous
        self.signature = signature_of(function)
        given = key is not None
        if key is None:
            key = escape_literal(own_name(function))
        if not isinstance(key, (str, Iterable)) and not callable(key):
            raise ConfigurationError(f"{self.function}: a key is a string or a callable, not {key!r}.")
        items = [key] if isinstance(key, str) or callable(key) else list(key)
        if not items:
            raise ConfigurationError(f"{self.function}: the list of keys is empty.")
        #: What the names are made of, in words that are the same for every call.
        self.template = ", ".join(item if isinstance(item, str) else self.function for item in items)[:MAX_SHOWN_CHARS]
        self.makers = [self._maker(item) for item in items]
        self.roots = {root for maker in self.makers if isinstance(maker, Template) for root in maker.roots}
        self.parameters = {
            name: (place, parameter) for place, (name, parameter) in enumerate(self.signature.parameters.items())
        }
        self.variables = {
            name: read for name, read in hooks.variables().items() if name in self.roots - self.parameters.keys()
        }
        self.from_arguments = self.roots - self.variables.keys()
        self.fixed = self._fixed()
        if given and self.fixed is not None:
            self._warn_of_forgotten_braces(items, function)

    def _warn_of_forgotten_braces(self, items: Iterable[object], function: Callable[..., Any]) -> None:
        """``order:order_id`` is one lock for all orders, and nothing else would say so."""
        words = {word for item in items if isinstance(item, str) for word in re.findall(r"\w+", item)[1:]}
        words -= set(re.findall(r"\w+", self.function))
        for name in self.signature.parameters:
            if name in words and name not in _NO_VALUES:
                code = getattr(inspect.unwrap(function), "__code__", None)
                text = (
                    f"{self.function}: the key {items!r} names its argument {name!r} without braces, so all calls "
                    f"share one lock. For a lock of each value write {{{name}}}."
                )
                where = (code.co_filename, code.co_firstlineno) if code is not None else (self.function, 0)
                warnings.warn_explicit(text, UserWarning, *where)

    def _maker(self, item: str | Callable[..., Any]) -> Template | Callable[..., Any]:
        if isinstance(item, str):
            return Template(item, self.signature, self.function)
        if not callable(item):
            raise ConfigurationError(f"{self.function}: a key is a string or a callable, not {item!r}.")
        if is_async(item) and not self.asynchronous:
            raise self._async_key()
        return item

    def _async_key(self) -> ConfigurationError:
        return ConfigurationError(f"{self.function}: an async key function needs an async function to be locked.")

    def _fixed(self) -> tuple[str, ...] | None:
        """The names, where they are the same for every call."""
        texts = []
        for maker in self.makers:
            if not isinstance(maker, Template) or maker.fixed is None:
                return None
            texts.append(maker.fixed)
        return tuple(texts)

    async def keys(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str, ...]:
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
                found.extend(await self._called(maker, maker(*args, **kwargs)))
        return tuple(found)

    async def _called(self, maker: Callable[..., Any], made: Any) -> tuple[str, ...]:
        if inspect.iscoroutine(made) and not self.asynchronous:
            made.close()
            raise self._async_key()
        if isinstance(made, Awaitable):
            made = await made
        try:
            code = getattr(maker, "__code__", None)
            if code is not None:
                refuse_forgotten_f(made, code)
            return whole_keys(made)
        except ConfigurationError as error:
            raise ConfigurationError(f"{self.function}: the key function gave {made!r}. {error}") from error

    def _picked(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Mapping[str, Any]:
        """The arguments that the keys name, where they are found at once: to bind them all takes four times as long."""
        picked = {name: read() for name, read in self.variables.items()} if self.variables else {}
        for root in self.from_arguments:
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
        return arguments | {name: read() for name, read in self.variables.items()}
