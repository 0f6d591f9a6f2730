"""Errors keep what they know, also across processes."""

from __future__ import annotations

import copy
import pickle

import pytest

import distlock_web
from distlock_web import ConfigurationError, DistLockError, KeyUnavailable, LeaseLost, LockBusy
from distlock_web.core import errors

CLASSES = [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, DistLockError)]


@pytest.mark.parametrize("error_class", CLASSES)
def test_the_docstring_is_the_default_message(error_class: type[DistLockError]) -> None:
    assert error_class.__doc__
    assert str(error_class()) == error_class.__doc__.strip().partition("\n")[0]
    assert str(error_class("said otherwise")) == "said otherwise"


@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy, lambda error: pickle.loads(pickle.dumps(error))])
def test_an_error_survives_the_way_to_another_process(how) -> None:  # type: ignore[no-untyped-def]
    busy = how(LockBusy("taken", name="order:1", retry_after=2.5))
    assert (type(busy), str(busy), busy.name, busy.retry_after) == (LockBusy, "taken", "order:1", 2.5)
    lost = how(LeaseLost(name="order:1", reason="revoked"))
    assert (type(lost), lost.name, lost.reason) == (LeaseLost, "order:1", "revoked")
    assert str(lost) == str(LeaseLost())


def test_busy_lost_and_unreachable_are_three_things() -> None:
    three = (LockBusy, LeaseLost, distlock_web.BackendUnavailable)
    assert not any(issubclass(a, b) for a in three for b in three if a is not b)
    assert issubclass(distlock_web.ConfigurationError, ValueError)


@pytest.mark.parametrize(
    "missing", ["the field id", ("field", "id"), ["id"], [("body", "id")], [("field", 1)], [[]], 7]
)
def test_what_a_client_has_to_send_is_named_in_pairs(missing: object) -> None:
    """The mistake came out where the answer was made: as a 500 that named a line of ours."""
    with pytest.raises(ConfigurationError, match=r'^missing is .*; it has to be pairs such as \[\("field", "id"\)\]'):
        KeyUnavailable(missing=missing)  # type: ignore[arg-type]
    assert KeyUnavailable(missing=[("field", "id")]).missing == (("field", "id"),)
