"""A plain lock that ends before the transaction around it: told once, where it is written."""

from __future__ import annotations

import gc
import inspect
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from weakref import ref

import pytest
from django.contrib.auth.models import Group
from django.db import connection, connections, transaction
from django.http import HttpRequest, HttpResponse

from distlock_web import distributed_lockable, lock
from distlock_web.core.errors import OpenTransactionWarning
from distlock_web.django.transactions import _opened

pytestmark = pytest.mark.usefixtures("memory", "real_transactions")


@contextmanager
def told() -> Iterator[list[warnings.WarningMessage]]:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("default")
        yield found


def line() -> int:
    frame = inspect.currentframe()
    assert frame is not None
    assert frame.f_back is not None
    return frame.f_back.f_lineno


def test_taken_inside_a_transaction() -> None:
    with told() as found, transaction.atomic():
        lock("order").acquire().release()
        here = line() - 1
    [warning] = found
    assert warning.category is OpenTransactionWarning
    assert (warning.filename, warning.lineno) == (__file__, here)
    assert "A lock is held inside a transaction on the database 'default'" in str(warning.message)
    assert 'until="commit"' in str(warning.message)


def test_taken_and_given_back_inside_a_transaction_it_is_told_once() -> None:
    with told() as found, transaction.atomic():
        warnings.simplefilter("always")
        lock("order").acquire().release()
    assert len(found) == 1


def test_given_back_by_its_block_inside_a_transaction() -> None:
    opened = transaction.atomic()
    with told() as found, lock("order"):
        opened.__enter__()
    opened.__exit__(None, None, None)
    assert [each.filename for each in found] == [__file__]


def test_a_view_is_pointed_to_where_it_is_defined(
    get: Callable[..., HttpResponse], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", True)

    @distributed_lockable(key="order")
    def view(request: HttpRequest) -> HttpResponse:
        return HttpResponse()

    with told() as found:
        get(view)
        get(view)
    [warning] = found  # once, though there were two requests
    assert (warning.filename, warning.lineno) == (__file__, inspect.unwrap(view).__code__.co_firstlineno)
    assert "test_a_view_is_pointed_to_where_it_is_defined.<locals>.view is held inside" in str(warning.message)


def test_as_an_error_it_leaves_no_lock_behind() -> None:
    with transaction.atomic(), pytest.raises(OpenTransactionWarning):
        lock("order").acquire()
    with lock("order"):
        pass


def test_a_lock_around_the_transaction_is_right() -> None:
    with lock("order"), transaction.atomic():
        Group.objects.create(name="written")


def test_a_lock_that_is_entered_again_is_the_outer_ones_business() -> None:
    @distributed_lockable(key="order")
    def inner() -> None:
        Group.objects.get_or_create(name="written")

    with lock("order"), transaction.atomic():
        inner()

    @distributed_lockable(key="order", until="commit")
    def outer() -> None:
        inner()

    outer()


def test_another_lock_inside_ends_before_the_commit() -> None:
    @distributed_lockable(key="order", until="commit")
    def outer() -> None:
        with lock("cart"):
            pass

    with pytest.warns(OpenTransactionWarning):
        outer()


def test_a_connection_that_its_project_has_let_go_of_is_not_kept() -> None:
    """One for each job, as by ``create_connection()``: a thread that lives long kept all of them, and asked each."""
    gone = []
    for number in range(5):
        made = connections.create_connection("default") if number % 2 else connections["default"].copy()
        made.connect()
        with told() as found, transaction.atomic(), lock("order"):
            pass
        assert [each.category for each in found] == [OpenTransactionWarning], "those that are kept are asked"
        made.close()
        gone.append(ref(made))
        del made
        gc.collect()
    assert [each() for each in gone] == [None] * 5
    with closing(connections["default"].copy()) as copy, copy.cursor():
        pass
    del copy
    assert not {id(each) for each in gone} & {id(each) for each in _opened.connections}, "nor what is left of them"
