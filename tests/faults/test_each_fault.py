"""A fixed choice of ``make faults``: the combinations that find a mutant, on the code as it is. All are the night's.

Each has found a defect that we had once, or could have. A finding is repeated by its name: ``make faults ONLY=...``.
"""

from __future__ import annotations

import re

import pytest

from tests.support.faults import __main__ as program
from tests.support.faults.mutants import MUTANTS
from tests.support.faults.steps import Combination
from tests.support.faults.table import try_these
from tests.support.faults.ways import WAYS
from tests.support.source import PROJECT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

#: What a quorum bears, of which no mutant is found by one fault.
OF_A_QUORUM = ["redlock/threads/handed/a:0-q-release#1/late", "redlock/asyncio/busy/b:0-q-vote#1/request-lost"]
CHOICE = [
    Combination.read(one) for one in [*(one for mutant in MUTANTS.values() for one in mutant.found_by), *OF_A_QUORUM]
]
#: Where the tests have a server already.
SERVERS = {"postgres": "postgres_server", "mariadb": "mariadb_server", "zookeeper": "zookeeper_server"}
#: Seconds after which a busy machine begins no other one.
ENOUGH = 30.0


@pytest.mark.parametrize("way", sorted({one.way for one in CHOICE}))
def test_one_fault_does_what_no_fault_may(way: str, request: pytest.FixtureRequest) -> None:
    """What took too long is the night's, which runs alone: others run beside this."""
    shared = {"port": request.getfixturevalue(SERVERS[way]).port} if way in SERVERS else None
    tried = try_these(way, [one for one in CHOICE if one.way == way], shared=shared, within=ENOUGH)
    assert {str(found.combination): found.wrong for found in tried.found if found.wrong} == {}


@pytest.mark.parametrize("is_required", [False, True])
def test_make_faults_tries_the_other_stores_where_one_has_no_server(
    is_required: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The night requires all: a store that is not tried may not look like one in which nothing is wrong."""
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("DISTLOCK_REQUIRE_SERVERS", "all" if is_required else "")
    monkeypatch.setattr(program, "WAYS", {name: WAYS[name] for name in ("zookeeper", "memory")})
    monkeypatch.setattr("sys.argv", ["faults", "--only", "*/threads/free", "--choice", "1", "--jobs", "1"])
    assert program.main() == is_required
    said = capsys.readouterr().out
    assert "zookeeper: NOT TRIED, java is not on PATH" in said
    assert "memory: 2 runs" in said


def test_the_night_tries_every_part_of_every_store() -> None:
    night = (PROJECT / ".github/workflows/nightly.yml").read_text("utf-8")
    tried = re.findall(r"^ +- \{of: (\w+), part: (\d)/(\d)\}$", night, re.M)
    assert {name for name, _, _ in tried} == WAYS.keys()
    for name in WAYS:
        parts = [(int(number), int(of)) for each, number, of in tried if each == name]
        assert parts == [(number, len(parts)) for number in range(1, len(parts) + 1)], name
