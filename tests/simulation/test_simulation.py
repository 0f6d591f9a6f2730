"""As many seeds as fit into half a minute; that a seed does the same again; and that what is wrong is found."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from tests.support.simulation.mutants import MUTANTS
from tests.support.simulation.scenarios import SCENARIOS
from tests.support.source import PROJECT


def simulate(
    *options: str, program: str = "tests.support.simulation", hashes: str = "0"
) -> subprocess.CompletedProcess[str]:
    command, env = [sys.executable, "-m", program, *options], {**os.environ, "PYTHONHASHSEED": hashes}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=600)


pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_no_seed_finds_a_violation() -> None:
    # The same seeds on every machine, as far as half a minute goes: new ones are for `make simulate`.
    done = simulate("--seconds", "30", "--seeds", "20")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(" seeds, ") == len(SCENARIOS)


@pytest.mark.parametrize("kind", ["memory", "redlock", "cluster-leases"])
def test_a_seed_does_the_same_again_whatever_came_before(kind: str) -> None:
    """And in whatever order a set is: no decision of ours comes from one."""
    alone = simulate("--seed", f"{kind}-3")
    assert "turns" in alone.stdout, alone.stderr
    assert simulate("--seed", f"{kind}-3", "--before", "2", hashes="7").stdout == alone.stdout


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_found(name: str) -> None:
    """By the seed that found it first, or by one of the next: each change of our code shifts what a seed does."""
    done = simulate("--only", name, program="tests.support.simulation.mutants")
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_night_each_scenario_has_its_part_of_the_seeds_that_the_page_names() -> None:
    nightly = (PROJECT / ".github/workflows/nightly.yml").read_text("utf-8")
    seeds = {kind: int(count) for kind, count in re.findall(r"scenario: (\S+), seeds: (\d+)", nightly)}
    assert seeds.keys() == SCENARIOS.keys()
    page = (PROJECT / "docs" / "proof.md").read_text("utf-8")
    named = re.findall(r"nightly workflow runs ([\d,]+)", page) + re.findall(r"([\d,]+) seeds that were", nightly)
    assert named == [f"{sum(seeds.values()):,}"] * 3
