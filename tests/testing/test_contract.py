"""Which cases of the contract a store's test file has: those for what the store can do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from distlock_web.backends.memory import MemoryBackend
from distlock_web.testing.contract import StoreContract

pytest_plugins = ("pytester",)

NEEDED = ("queue", "bounded_queue", "transfer", "records", "sharing")


def cases(contract: type) -> set[str]:
    """The names of what pytest would collect."""
    return {name for name in dir(contract) if name.startswith("test_") and callable(getattr(contract, name))}


@pytest.mark.parametrize("capability", NEEDED)
def test_a_file_that_names_its_store_has_no_case_for_what_that_cannot_do(capability: str) -> None:
    class Less(MemoryBackend):
        capabilities = replace(MemoryBackend.capabilities, **{capability: False})

    class Contract(StoreContract):
        backend = Less

    class Deeper(Contract):
        pass

    def needs(name: str) -> set[str]:
        marks: Any = getattr(getattr(StoreContract, name), "pytestmark", ())
        return {needed for mark in marks if mark.name == "needs" for needed in mark.args}

    left_out = {name for name in cases(StoreContract) if capability in needs(name)}
    assert left_out
    assert cases(Contract) == cases(Deeper) == cases(StoreContract) - left_out


def test_a_case_is_left_out_or_skipped_and_never_for_another_store(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        stores="""
        from dataclasses import replace
        from distlock_web.backends.memory import MemoryBackend

        class Less(MemoryBackend):
            capabilities = replace(MemoryBackend.capabilities, bounded_queue=False)
        """,
        test_it="""
        import pytest
        from distlock_web.backends.memory import MemoryBackend
        from distlock_web.testing.contract import StoreContract
        from stores import Less

        class TestSaysNothing(StoreContract):
            @pytest.fixture
            def settings(self):
                return {"BACKEND": "stores.Less"}

        class TestNamed(TestSaysNothing):
            backend = Less

        class TestWrong(TestSaysNothing):
            backend = MemoryBackend
        """,
    )
    result = pytester.runpytest_subprocess(
        "-q", "-p", "no:django", "-p", "no:cacheprovider", "-k", "max_waiters_wait or the_shortest_lease"
    )
    result.assert_outcomes(passed=4, skipped=2, errors=4)
    result.stdout.fnmatch_lines("*the cases were chosen for *MemoryBackend'>, and this is <class 'stores.Less'>*")
