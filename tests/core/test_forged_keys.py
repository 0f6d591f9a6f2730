"""Somebody else fills in the values of a key; a colleague writes it carelessly. Neither may take another's lock."""

from __future__ import annotations

import functools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distlock_web import ConfigurationError, distributed_lockable, lock
from distlock_web.core.config import parse
from distlock_web.core.runtime import drive
from distlock_web.locks.key_templates import Key, KeyTemplates


def pay(a: object, b: object = 1) -> None:
    pass


def names(key: Key | None, function: Any, *args: object, **kwargs: object) -> tuple[str, ...]:
    return drive(KeyTemplates(key, function, asynchronous=False).keys(args, kwargs))


# What a value can do ----------------------------------------------------------------------------------------------

separators = st.text(st.sampled_from(":-_ %~{}\t\n\x00/.é2a"), min_size=1, max_size=3)
values = st.text(st.sampled_from(":-_ %~{}\t\n\x00/.é2aBDE7"), max_size=5)


@given(separators, values, values, values, values)
def test_two_calls_have_one_name_only_if_their_values_are_the_same(
    between: str, a: str, b: str, c: str, d: str
) -> None:
    key = "{a}" + between.replace("{", "{{").replace("}", "}}") + "{b}"
    try:
        keys = KeyTemplates(key, pay, asynchronous=False)
    except ConfigurationError as error:
        assert "needs a separator" in str(error)  # noqa: PT017 - most separators are fine
        return
    one, two = drive(keys.keys((a, b), {})), drive(keys.keys((c, d), {}))
    assert (one == two) == ((a, b) == (c, d))


@pytest.mark.parametrize("between", ["%", "~", "{{", "\t", "%~"])
def test_a_separator_that_is_escaped_itself_separates_nothing(between: str) -> None:
    # pay("1%", "2") and pay("1", "%2") were one lock.
    with pytest.raises(ConfigurationError, match="needs a separator such as ':'"):
        KeyTemplates("{a}" + between + "{b}", pay, asynchronous=False)
    assert names("{a}:" + between + "{b}", pay, "1", "2")


def test_keyword_arguments_cannot_take_the_place_of_a_positional_one() -> None:
    def update(order_id: int, /, **fields: object) -> None:
        pass

    # update(7, **request.form): the form may have an order_id as well, and the body never sees it as its argument.
    assert names("order:{order_id}", update, 7, order_id=8) == ("order:7",)
    assert names("order:{state}", update, 7, state="paid") == ("order:paid",)


# What a colleague can write ---------------------------------------------------------------------------------------


def rest(a: object, **fields: object) -> None:
    pass


def test_the_rest_of_the_arguments_is_no_argument() -> None:
    with pytest.raises(ConfigurationError, match=r"names \*\*fields: name an argument in it"):
        KeyTemplates("{fields[x]}", rest, asynchronous=False)


@pytest.mark.parametrize("function", [functools.partial(pay, 1), lambda: None])
def test_what_has_no_name_of_its_own_needs_a_key(function: Any) -> None:
    # All partials of a process had one lock, functools.?
    with pytest.raises(ConfigurationError, match="no name of its own"):
        distributed_lockable(function)
    assert callable(distributed_lockable(key="x")(function))


def test_a_function_that_does_not_tell_its_arguments() -> None:
    with pytest.raises(ConfigurationError, match="does not show its arguments"):
        distributed_lockable(key="x")(max)


@pytest.mark.parametrize("prefix", ["order:{id}:", "a%", "a~", "a\n", "a\x00", 5])
def test_a_prefix_is_fixed_text(prefix: Any) -> None:
    with pytest.raises(ConfigurationError, match="has to be text without braces"):
        lock("x", prefix=prefix)
    with pytest.raises(ConfigurationError, match=r'DISTLOCK\[.default.\]\["PREFIX"\] is'):
        parse({"default": {"PREFIX": prefix}})
