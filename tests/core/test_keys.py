"""Names: readable, bounded, never the same for two different calls. (What a client can try: test_forged_keys.py.)"""

from __future__ import annotations

import asyncio
import functools
import re
import sys
from types import ModuleType
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from distlock_web import ConfigurationError, KeyUnavailable, current_lease, distributed_lockable, escape_key, lock
from distlock_web.core.keys import MAX_NAME_BYTES, escape_literal, escape_value, shorten, whole_key
from distlock_web.core.runtime import drive
from distlock_web.locks import hooks
from distlock_web.locks.key_templates import KeyTemplates

texts = st.text(st.characters(), max_size=12)  # surrogates, controls and all


def transfer(src: object, dst: object = "7", *rest: object, note: str = "x") -> None:
    """What the keys of this file are about."""


def names(key: Any, *args: object, **kwargs: object) -> tuple[str, ...]:
    return drive(KeyTemplates(key, transfer, asynchronous=False).keys(args, kwargs))


@given(texts, texts)
def test_different_values_have_different_names(one: str, other: str) -> None:
    assert (escape_value(one) == escape_value(other)) == (one == other)


@given(texts, texts)
def test_different_keys_have_different_names_unless_one_is_the_escape_of_the_other(one: str, other: str) -> None:
    first, second = escape_literal(one), escape_literal(other)
    assert (first == second) == (one in (other, second) or other == first)


@given(texts)
def test_what_is_escaped_is_kept(text: str) -> None:
    assert escape_literal(escape_literal(text)) == escape_literal(text)
    assert escape_literal(escape_value(text)) == escape_value(text)


def name_in_block(*args: Any) -> str:
    @distributed_lockable(key="cart:{x}:{y}")
    def decorated(x: object, y: object) -> str:
        lease = current_lease()
        assert lease is not None
        return lease.name

    return decorated(*args)


@pytest.mark.usefixtures("memory_store")
@given(
    st.one_of(st.text(st.characters()), st.text(st.sampled_from("%~{}:|/ -2537AFé\n\x00\ud800")), st.just("x" * 500))
)
@example("a:b")
@example("%3A")
@example("50%")
@example("~" * 300)
def test_by_hand_and_by_template_it_is_one_lock(text: str) -> None:
    made = name_in_block(text, 7)
    with lock(f"cart:{escape_key(text)}:{escape_key(7)}") as lease:
        assert lease.name == made
    if not {"%", ":", "|", "{"} & set(text):
        with lock(f"cart:{text}:7") as lease:
            assert lease.name == made


def test_what_stands_between_two_fields_is_no_part_of_a_value() -> None:
    assert names("{src}-{dst}", "a-b", "c") == ("a%2Db-c",)
    assert names("{src}-{dst}", "a-b", "c") == (f"{escape_key('a-b', ':|-')}-c",)
    assert names("order-{src}", "a-b") == ("order-a-b",), "a key of one value may have it"


@given(st.text(st.characters(), max_size=400))
def test_a_name_is_bounded_and_has_no_braces_or_controls(text: str) -> None:
    for name in (escape_literal(text), escape_value(text), shorten(escape_literal(text))):
        assert not {"{", "}", "\0", "\n", "\r", "\t"} & set(name)
        assert name.isprintable()
    assert len(shorten(escape_literal(text)).encode()) <= MAX_NAME_BYTES


long_texts = st.text(st.characters(), min_size=MAX_NAME_BYTES, max_size=MAX_NAME_BYTES + 50)


@given(long_texts, long_texts)
def test_long_names_stay_different(one: str, other: str) -> None:
    assert (shorten("p" * MAX_NAME_BYTES + one) == shorten("p" * MAX_NAME_BYTES + other)) == (one == other)


def test_a_long_name_keeps_its_beginning_and_cannot_be_imitated() -> None:
    shortened = shorten("order:" + "x" * 10_000)
    assert shortened.startswith("order:xxxx")
    # What a shortened name looks like, given as a key, is another name: '~' is escaped in keys.
    assert whole_key(shortened) != shortened


@pytest.mark.parametrize(
    ("key", "args", "expected"),
    [
        ("order:{src}", (42,), ("order:42",)),
        ("{src}:{dst}", ("a:b", "c"), ("a%3Ab:c",)),
        ("order:{src.real}", (42,), ("order:42",)),
        ("order:{src[id]}", ({"id": 5},), ("order:5",)),
        ("order:{src:int}", (" 07",), ("order:7",)),
        ("{note}:{rest[0]}", (1, 2, 3), ("x:3",)),
        (["a:{dst}", "b:{src}"], (1, 2), ("a:2", "b:1")),
        (lambda src, *rest, **more: f"own:{src}", (9,), ("own:9",)),
        (lambda src: (f"{name}:{src}" for name in ("one", "two")), (9,), ("one:9", "two:9")),
        ("all", (1,), ("all",)),
        ("100%{{x}}", (1,), ("100%25%7Bx%7D",)),
        ("straße:{src}", ("ü b",), ("straße:ü b",)),
        ("a|{src}", (1,), ("a|1",)),
        ("{src}-{dst}.{note}", ("X", "a-b"), ("X-a%2Db.x",)),
        ("{src:str}--{dst:str}", ("X", "a-b"), ("X--a%2Db",)),
        ("{src}:{dst}:{note}", ("X", "X"), ("X:X:x",)),
        (functools.partial("{1}:{0}".format, "own"), (9,), ("9:own",)),
    ],
)
def test_names(key: Any, args: tuple[object, ...], expected: tuple[str, ...]) -> None:
    assert names(key, *args) == expected


def test_for_people_they_are_what_is_written_or_the_function() -> None:
    keys = KeyTemplates(["order:{src}", lambda src: src], transfer, asynchronous=False)
    assert keys.template == f"order:{{src}}, {keys.function}"


def test_defaults_and_keywords_are_arguments() -> None:
    assert names(lambda src, note: f"{src}:{note}", 1, note="n") == ("1:n",)
    assert names("{src}:{dst}", src=1) == names("{src}:{dst}", 1, "7") == ("1:7",)


def test_a_missing_argument_is_the_callers_type_error() -> None:
    with pytest.raises(TypeError, match="src"):
        names("{src}")


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("order:{order_id}", "order_id.*src, dst, rest, note"),
        ("order:{}", "without a name"),
        ("order:{0}", "'0'"),
        ("order:{src", "not a template"),
        ("{src}{dst}", "separator"),
        ("{src}a{dst}", "separator"),
        ("{src:{dst}}", "nests"),
        ("{src:integer}", r"':integer', which is not a conversion; there are :int, :lower, :str, :uuid"),
        ("{src:04d}", "':04d', which is not a conversion"),
        ("{src!r}", "'!r', which is not a conversion"),
        ("{src!r:int}", "'!r:int', which is not a conversion"),
        *(
            (field, r"has attributes, and items without quotes.*\[Idempotency-Key\].*calls nothing")
            for field in (
                "{src.headers['Idempotency-Key']}",
                '{src|src.headers["Idempotency-Key"]}',
                "{src.headers.get('Idempotency-Key')}",
                "{src.headers.Idempotency-Key}",
                "{src.pk()}",
            )
        ),
        ("{src[]}", "cannot be read: Empty attribute"),
        ("{src()}", r"'src\(\)', which is not an argument"),
        ("", "empty"),
        ([], "empty"),
        ([""], "empty"),
        ([7], "string or a callable"),
    ],
)
def test_a_key_that_cannot_be_right_is_refused_when_it_is_written(key: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as caught:
        distributed_lockable(key=key)(transfer)
    assert "transfer" in str(caught.value), "it says of which function"


class Broken:
    @property
    def broken(self) -> str:
        raise TypeError("a mistake of the attribute's")


@pytest.mark.parametrize(
    ("key", "arg", "message"),
    [
        ("order:{src.pk}", 1, "pk"),
        ("order:{src.broken}", Broken(), "TypeError: a mistake of the attribute's"),
        ("order:{src}", object(), "no stable text"),
        *[
            (lambda src, made=made: made, 1, "the key function gave")
            for made in (5, None, b"x", "", ["x", None], [], {"x": 1})
        ],
    ],
)
def test_a_value_that_would_make_a_wrong_lock_is_refused(key: Any, arg: object, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        names(key, arg)


@pytest.mark.parametrize(
    ("key", "arg", "message"),
    [
        ("order:{src}", None, "is None"),
        ("order:{src.pk}", None, "is None"),
        ("order:{src[id]}", {}, "is missing: KeyError"),
        ("order:{src[0]}", [], "is missing: IndexError"),
        ("order:{src[id]|src[pk]}", {"id": None}, "is missing: KeyError: 'pk'"),
        # A client's JSON that is no object.
        ("order:{src[id]}", [], "is missing: TypeError: list indices must be integers"),
        ("order:{src[id]}", "x", "is missing: TypeError: string indices must be integers"),
        ("order:{src[id]}", 5, "is missing: TypeError: 'int' object is not subscriptable"),
        ("order:{src[id]|src[pk]}", {"id": None, "pk": None}, "is None"),
    ],
)
def test_a_value_that_is_missing_is_the_callers_fault(key: str, arg: object, message: str) -> None:
    """And not the author's: a 400, where the caller is a client."""
    with pytest.raises(KeyUnavailable, match=message) as caught:
        names(key, arg)
    assert not isinstance(caught.value, ConfigurationError)


@pytest.mark.parametrize(
    ("field", "missing"),
    [
        ("src.headers[X-Tenant]", ("header", "X-Tenant")),
        ("src.META[HTTP_X_TENANT]", ("header", "X-Tenant")),
        *(
            (f"src.{part}[id]", ("field", "id"))
            for part in ("POST", "form", "data", "json", "values", "FILES", "files")
        ),
        # What no client sends, and what is no item of a request.
        *((f"src.{other}", None) for other in ("META[REMOTE_ADDR]", "session[id]", "META.HTTP_X_TENANT", "form.id")),
        *((f"src{other}", None) for other in ("[META][HTTP_X_TENANT]", "[form][id]", "[headers].id", "[id]")),
    ],
)
def test_what_is_missing_is_named_if_a_client_has_to_send_it(field: str, missing: tuple[str, str] | None) -> None:
    class Request:
        """It has nothing of all that."""

        def __getattr__(self, name: str) -> Any:
            return None if name == "HTTP_X_TENANT" or name == "id" else self

        def __getitem__(self, name: str) -> Any:
            if name in ("META", "form", "headers"):
                return self
            raise KeyError(name)

    with pytest.raises(KeyUnavailable) as caught:
        names(f"order:{{{field}}}", Request())
    assert caught.value.missing == (() if missing is None else (missing,))


@pytest.mark.parametrize("name", ["request", "session", "g", "current_user", "order"])
def test_without_flasks_integration_it_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hooks, "variables", dict)

    def view() -> None: ...

    with pytest.raises(ConfigurationError) as caught:
        KeyTemplates(f"cart:{{{name}.pk}}", view, asynchronous=False)
    hint = "" if name == "order" else f" {hooks.why_unknown()}"
    assert str(caught.value).endswith(f"is not an argument of it (it has: none).{hint}")


@pytest.mark.parametrize("loaded", [set(), {"flask"}, {"django", "starlette"}])
def test_an_error_names_the_frameworks_that_the_process_has(loaded: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("django", "flask", "starlette"):
        if name in loaded:
            monkeypatch.setitem(sys.modules, name, ModuleType(name))
        else:
            monkeypatch.delitem(sys.modules, name, raising=False)
    assert set(re.findall(r"distlock_web\.(\w+)", hooks.why_unknown())) == loaded


class Shop:
    def __call__(self, order_id: int) -> None: ...


def test_a_key_without_braces_is_warned_of_where_it_stands() -> None:
    for function, file in ((transfer, __file__), (Shop(), f"{__name__}.Shop(...)")):
        with pytest.warns(UserWarning, match="without braces") as told:
            KeyTemplates("order:src:order_id", function, asynchronous=False)
        assert [warning.filename for warning in told] == [file]


def test_a_field_may_have_a_second_choice() -> None:
    assert names("cart:{src[user]|src[session]}", {"user": 7}) == ("cart:7",)
    assert names("cart:{src[user]|src[session]}", {"user": None, "session": "7"}) == ("cart:|7",)
    assert names("cart:{src[user]|src[session]|dst}", {}) == ("cart:||7",)
    assert names("{src[a|b]:int}", {"a|b": "07"}) == ("7",), "a '|' in an index is the index's"


choices = st.tuples(*[st.one_of(st.none(), st.text(st.sampled_from(":|-%a"), max_size=3))] * 4)


@given(choices, choices)
@pytest.mark.parametrize("key", ["{a|b}:{c|d}", "{a|b}-{c|d}", "{a}:{b|c}:{d}"])
def test_a_second_choice_is_never_taken_for_a_first(key: str, one: tuple[str, ...], other: tuple[str, ...]) -> None:
    def function(a: str, b: str, c: str, d: str) -> None: ...

    keys = KeyTemplates(key, function, asynchronous=False)

    def meant(given: tuple[str, ...]) -> list[tuple[int, str]] | None:
        found = []
        for field in key.replace("-", ":").split(":"):
            given_here = [(place, given["abcd".index(name)]) for place, name in enumerate(field.strip("{}").split("|"))]
            found.append(next(((place, text) for place, text in given_here if text is not None), None))
        return None if None in found else found  # type: ignore[return-value]

    if meant(one) is None or meant(other) is None:
        with pytest.raises(KeyUnavailable):
            drive(keys.keys(one if meant(one) is None else other, {}))
    else:
        assert (drive(keys.keys(one, {})) == drive(keys.keys(other, {}))) == (meant(one) == meant(other))


def test_a_choice_beside_a_bar_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="both outside of a field and in one"):
        names("{src|dst}|{note}")


@pytest.mark.parametrize("key", ["", None, 5, b"x", ["a", ""], [None], []])
def test_lock_refuses_what_is_no_key(key: Any) -> None:
    with pytest.raises(ConfigurationError):
        lock(key)


def test_a_key_function_may_be_async_in_async_code_only() -> None:
    async def key(src: object) -> str:
        await asyncio.sleep(0)
        return f"slow:{src}"

    async def view(src: object) -> None: ...

    assert asyncio.run(KeyTemplates(key, view, asynchronous=True).keys((3,), {})) == ("slow:3",)
    with pytest.raises(ConfigurationError, match="async"):
        KeyTemplates(key, transfer, asynchronous=False)
