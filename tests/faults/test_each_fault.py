"""A fixed choice of ``make faults``: the combinations that find a mutant, on the code as it is. All are the night's.

Each has found a defect that we had once, or could have. A finding is repeated by its name: ``make faults ONLY=...``.
"""

from __future__ import annotations

import pytest

from tests.support.faults.mutants import MUTANTS
from tests.support.faults.steps import Combination
from tests.support.faults.table import try_these
from tests.support.faults.ways import WAYS

pytestmark = pytest.mark.slow

CHOICE = [Combination.read(one) for mutant in MUTANTS.values() for one in mutant.found_by]
#: Where the tests have a server already.
SERVERS = {"postgres": "postgres_server", "mariadb": "mariadb_server", "zookeeper": "zookeeper_server"}


@pytest.mark.parametrize("way", WAYS)
def test_one_fault_does_what_no_fault_may(way: str, request: pytest.FixtureRequest) -> None:
    """Time is judged only where the machine had some, and never by one run alone."""
    shared = {"port": request.getfixturevalue(SERVERS[way]).port} if way in SERVERS else None
    those = [one for one in CHOICE if one.way == way]
    tried = try_these(way, those, shared=shared)
    assert {str(found.combination): found.complaints for found in tried.wrong} == {}
    assert sum(found.struck for found in tried.found) > len(those) / 2, "it was no fault"
