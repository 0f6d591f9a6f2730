"""One row, one key: what has a stable text, how many spellings one value has, and what is refused."""

from __future__ import annotations

import enum
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import PurePath
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distlock_web import ConfigurationError, KeyUnavailable, escape_key, lock
from distlock_web.core import integrations, keys
from distlock_web.core.runtime import drive
from distlock_web.locks.hooks import Integration, install
from distlock_web.locks.key_templates import KeyTemplates, MalformedValue
from distlock_web.locks.lock import Lock

pytestmark = pytest.mark.usefixtures("memory_store")

keys.row_of(object())  # loads what asks SQLAlchemy and Django: the list that a test replaces would take it along


def pay(pk: object, other: object = 1) -> None:
    """What the keys are about."""


def name(key: Any, *args: object) -> str:
    [found] = drive(KeyTemplates(key, pay, asynchronous=False).keys(args, {}))
    return found


# Stable texts -----------------------------------------------------------------------------------------------------


class Colour(enum.Enum):
    RED = object()

    def __str__(self) -> str:
        return "in the language of whoever reads it"


class Status(str, enum.Enum):  # noqa: UP042 - as it was written before StrEnum, and as Django's TextChoices is
    PAID = "paid"


class Level(enum.IntEnum):
    HIGH = 7


SAME = [
    (1, True, 1.0, Decimal("1"), Decimal("1.00"), "1"),
    (0, False, -0.0, Decimal("-0"), Decimal("0E+5"), "0"),
    (10, 1e1, Decimal("1E+1"), Decimal("10.0"), "10"),
    (10**20, 1e20, Decimal("1E+20"), "1" + "0" * 20),
    (1.5, Decimal("1.5"), Decimal("1.50"), "1.5"),
    (0.1, Decimal("0.1"), "0.1"),
    (1e-7, Decimal("1e-7"), "0.0000001"),
    (Decimal("1E+999999999"), Decimal("10E+999999998"), "1E+999999999"),
    (Status.PAID, "paid"),
    (Level.HIGH, 7, "7"),
    (
        datetime(2026, 11, 21, 16, tzinfo=UTC),
        datetime(2026, 11, 21, 17, tzinfo=timezone(timedelta(hours=1))),
        "2026-11-21 16:00:00+00:00",
    ),
    (datetime(2026, 11, 21, 16), "2026-11-21 16:00:00"),
    (date(2026, 11, 21), "2026-11-21"),
    (PurePath("a/b c"), "a/b c"),
    (UUID(int=7), "00000000-0000-0000-0000-000000000007"),
    (Colour.RED, "Colour.RED"),
    (b"\x01\xff", "01ff"),
]


@pytest.mark.parametrize("values", SAME, ids=lambda values: str(values[-1])[:20])
def test_equal_values_have_one_text(values: tuple[object, ...]) -> None:
    assert {name("{pk}", value) for value in values} == {escape_key(values[-1])}
    assert {escape_key(value) for value in values} == {escape_key(values[-1])}


def test_a_float_is_the_number_that_python_prints() -> None:
    """And not the one that is nearest to it in binary, though that is equal to it."""
    assert 0.1 == Decimal(0.1) != Decimal("0.1")  # noqa: RUF032 - that number
    assert keys.text_of(0.1) == keys.text_of(Decimal("0.1")) != keys.text_of(Decimal(0.1))  # noqa: RUF032


@given(st.decimals(), st.decimals())
def test_numbers_have_one_text_if_they_are_equal(one: Decimal, other: Decimal) -> None:
    if one.is_finite() and other.is_finite():
        assert (keys.text_of(one) == keys.text_of(other)) == (one == other)


@given(st.floats(allow_nan=False) | st.integers() | st.booleans(), st.floats(allow_nan=False) | st.integers())
def test_whole_numbers_have_one_text_whatever_their_type(one: Any, other: Any) -> None:
    assert (keys.text_of(one) == keys.text_of(other)) == (one == other)


def test_a_moment_at_the_end_of_time_does_no_harm() -> None:
    latest = datetime.max.replace(tzinfo=timezone(timedelta(hours=-1)))
    assert name("{pk}", latest) == escape_key(str(latest))


@dataclass
class Order:
    pk: int
    state: str


class Lazy:
    """As Django's ``gettext_lazy``: its text is in the language of whoever reads it."""

    def __str__(self) -> str:
        return "Bestellung"


@pytest.mark.parametrize("value", [Order(1, "new"), Lazy(), Order, {1, 2}, ("a", 1), range(3), object()])
def test_what_has_no_stable_text_is_refused_with_the_remedy(value: object) -> None:
    refused = pytest.raises(
        ConfigurationError, match=r"no stable text.*an attribute that identifies it, such as its pk or id"
    )
    with refused:
        name("{pk}", value)
    with refused:
        escape_key(value)


@pytest.mark.parametrize("value", [["x"], ["x at 0x1"], [], {"id": "x at 0x1"}, OrderedDict(a=1), [[]]])
@pytest.mark.parametrize("key", ["{pk}", "{pk:int}", "{pk:uuid}", "{pk:lower}", "{pk:str}"])
def test_several_values_of_a_clients_json_are_the_clients_fault(key: str, value: object) -> None:
    with pytest.raises(KeyUnavailable, match=r"is a .*, but a key needs a single value"):
        name(f"order:{key}", value)


class Anonymous:
    """Django's visitor, and Flask-Login's, who is not logged in."""

    pk = None
    is_anonymous = True


def test_a_visitor_who_is_not_logged_in_is_nobody() -> None:
    with pytest.raises(KeyUnavailable, match="is None; all callers without a value would share one lock"):
        name("cart:{pk}", Anonymous())
    assert name("cart:{pk|other}", Anonymous(), "10.0.0.7") == "cart:|10.0.0.7"
    shares: list[Any] = [escape_key, lock]
    for share in shares:
        with pytest.raises(KeyUnavailable, match="share one lock"):
            share(Anonymous())


# Conversions ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["1", "01", "+1", " 1", "1 ", "١", "０１", 1, True, 1.0, Decimal("1.0")])
def test_a_number_has_one_spelling(value: object) -> None:
    """All of these find row 1 in a database, or through Django's ORM."""
    assert name("wallet:{pk:int}", value) == "wallet:1"


@pytest.mark.parametrize(
    "value", ["", "one", "1.5", "0x1", "1_0", "1e0", "1 1", "--1", "9" * 5000, "\x00", 1.5, Decimal("NaN")]
)
def test_what_is_no_number_is_the_clients_fault(value: object) -> None:
    with pytest.raises(
        MalformedValue, match=r"pay: the field \{pk:int\} of the key 'wallet:\{pk:int\}' cannot be made of"
    ):
        name("wallet:{pk:int}", value)


def test_a_uuid_has_one_spelling() -> None:
    found = UUID("6ba7b810-9dad-11d1-80b4-00c04fd430c8")
    for value in (found, str(found).upper(), found.hex, found.urn, f"{{{found}}}"):
        assert name("order:{pk:uuid}", value) == f"order:{found}"
    for wrong in ("", "6ba7b810", 7, "g" * 32):
        with pytest.raises(MalformedValue, match="cannot be made of"):
            name("order:{pk:uuid}", wrong)


def test_lower_and_str() -> None:
    assert name("user:{pk:lower}", "Ann@Example.ORG") == "user:ann@example.org"
    assert name("user:{pk:lower}", "ÄÖ:") == "user:äö%3A"
    assert name("user:{pk:str}", "Ann") == "user:Ann"
    assert name("user:{pk:str}", 1.0) == "user:1"


def test_a_conversion_is_for_all_choices_of_a_field() -> None:
    assert name("{pk|other:int}", "01") == "1"
    assert name("{pk|other:int}", None, "01") == "|1"
    with pytest.raises(MalformedValue):  # it is there, and wrong
        name("{pk|other:int}", "x", "1")


# Objects that stand for rows --------------------------------------------------------------------------------------


class Record:
    """Of a database library of somebody's own."""

    def __init__(self, *key: object) -> None:
        self.key = key

    def __iter__(self) -> Any:  # as some have it, over their columns
        return iter(self.key)


class Records(Integration):
    def row_of(self, value: object) -> integrations.Row | None:
        return ("shop.order-line", value.key) if isinstance(value, Record) else None


@pytest.fixture
def records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(integrations.installed, "rows", [Records().row_of])


@pytest.mark.usefixtures("records")
def test_an_object_is_its_table_and_its_key() -> None:
    assert name("{pk}", Record(7)) == escape_key(Record(7)) == "shop.order-line:7"
    assert name("paid:{pk}", Record("a:b", "c,d")) == "paid:shop.order-line:a%3Ab,c%2Cd"
    assert name("{pk}-{other}", Record("a-b"), 1) == "shop.order%2Dline:a%2Db-1", "what separates is in no value"
    assert name("{pk}", "shop.order-line:7") != name("{pk}", Record(7)), "a text cannot imitate it"
    with lock(Record(7)) as lease:
        assert lease.name == "disLock:shop.order-line:7"
    with lock([Record(7), "a", Record(8)]) as lease:
        assert set(lease.fences) == {"disLock:shop.order-line:7", "disLock:a", "disLock:shop.order-line:8"}


@pytest.mark.usefixtures("records")
def test_a_key_function_may_give_objects() -> None:
    assert name(lambda pk, *more: pk, Record(7)) == "shop.order-line:7"
    found = KeyTemplates(lambda pk: [pk, f"stock:{pk.key[0]}"], pay, asynchronous=False)
    assert drive(found.keys((Record(7),), {})) == ("shop.order-line:7", "stock:7")


@pytest.mark.usefixtures("records")
@pytest.mark.parametrize("make", [lambda row: lock(row), lambda row: escape_key(row), lambda row: name("{pk}", row)])
def test_a_row_that_is_not_saved_has_no_key(make: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"a row of shop\.order-line that is not saved"):
        make(Record(None))


@pytest.mark.usefixtures("records")
def test_a_row_is_not_converted() -> None:
    with pytest.raises(
        ConfigurationError, match=r"\{pk:int\}.*stands for a row, which is a whole key: leave the conversion out"
    ):
        name("order:{pk:int}", Record(7))


def test_what_an_integration_offers_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(integrations, "installed", integrations.Installed())
    install(Records())
    assert escape_key(Record(7)) == "shop.order-line:7"


def test_who_locks_a_text_or_a_number_pays_nothing_for_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    monkeypatch.setattr(integrations.installed, "rows", [asked.append])
    for key in ("stock:42", ["stock:42", "stock:43"], ("stock:42",)):
        lock(key).acquire().release()
    templates: list[Any] = ["order:{pk}", "order:{pk:int}", lambda pk: f"order:{pk}", lambda pk: ["a", f"order:{pk}"]]
    for template in templates:
        drive(KeyTemplates(template, pay, asynchronous=False).keys(("7",), {}))
    assert asked == []
    with pytest.raises(ConfigurationError):
        escape_key(object())
    assert len(asked) == 1


def test_a_library_of_a_release_that_ours_is_not_made_for_does_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "_WITH_ROWS", {"sys": "distlock_web.nothing_of_the_kind"})
    monkeypatch.setattr(integrations.installed, "rows", [Records().row_of])
    assert escape_key(Record(7)) == "shop.order-line:7"


# Braces -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "key", ["order:{order_id}", "{}", "a{0}b", "{order.pk}", "{order['id']}", "{str(order)}", "{ä}"]
)
@pytest.mark.parametrize(
    "call",
    [
        "lock({key!r})",
        "lock(['a', {key!r}])",
        "lock(('a', 'b', {key!r}))",
        "lock(['a', 'b', {key!r}, 'c'])",
        "name(lambda pk: {key!r}, 1)",
        "name(lambda pk: ['a', {key!r}], 1)",
    ],
)
def test_a_forgotten_f_is_refused(key: str, call: str) -> None:
    with pytest.raises(ConfigurationError, match="an f is missing in front of the string"):
        eval(call.format(key=key))


@pytest.mark.parametrize("text", ["report{1}", "{draft}", "a{b}c.txt", "{}"])
def test_braces_in_a_text_that_was_made_at_run_time_are_text(text: str) -> None:
    """The name of a client's file: what a client can send ends no request."""
    whole = f"file:{text}"
    expected = "disLock:file:" + escape_key(text)
    makers: list[Callable[[], Lock]] = [lambda: lock(whole), lambda: lock([whole]), lambda: lock(f"file:{text}")]
    for make in makers:
        with make() as lease:
            assert lease.name == expected
    assert name(lambda pk: f"file:{pk}", text) == "file:" + escape_key(text)


@pytest.mark.parametrize("text", ["{", "}", "{{", "a}b{c", '{"a": 1}', "{'a': 1}", "{ a", "{1, 2}"])
def test_braces_that_are_no_field_are_text(text: str) -> None:
    with lock(text) as lease:
        assert lease.name == "disLock:" + escape_key(text, separators="|")


def test_a_literal_brace_is_spelled_by_escape_key() -> None:
    assert escape_key("{order_id}") == "%7Border_id%7D"
    with lock(escape_key("{order_id}")) as lease:
        assert lease.name == "disLock:%7Border_id%7D"
    with lock("%7B") as one:
        assert one.name == "disLock:%7B"
    with lock("{") as other:
        assert other.name == one.name
