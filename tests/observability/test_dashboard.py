"""The dashboard, the alert rules, the runbook and the page of the metrics speak of what there is."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

import distlock_web
from distlock_web import DistLockError, events
from distlock_web.prometheus import Metrics

DOCS = Path(__file__).parents[2] / "docs"
DASHBOARD: dict[str, Any] = json.loads((DOCS / "grafana" / "dashboard.json").read_text())
RULES = (DOCS / "grafana" / "alerts.yml").read_text()
RUNBOOK = (DOCS / "runbook.md").read_text()


def samples() -> dict[str, set[str]]:
    """Every sample that can be scraped, with its labels."""
    registry = CollectorRegistry()
    metrics = Metrics(registry, 10)
    for kind in events.Kind.__args__:  # type: ignore[attr-defined]
        metrics(events.Event(kind, "default", "disLock:a", "a", 0.0, lease=1, reason="x"))
    found: dict[str, set[str]] = {}
    for family in registry.collect():
        for sample in family.samples:
            if not sample.name.endswith("_created"):
                found.setdefault(sample.name, set()).update(sample.labels)
    return found


SAMPLES = samples()


def queries_of_dashboard() -> Iterator[tuple[str, str]]:
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"]
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            yield f"${variable['name']}", variable["query"]["query"]


def alerts() -> dict[str, str]:
    """By its name what each alert asks. The file has one form, so that nothing has to parse all of YAML."""
    found = {}
    for block in RULES.split("- alert: ")[1:]:
        name, _, rest = block.partition("\n")
        expression = re.search(r"^ +expr: (?:\|\n)?(.*?)(?=^ {8}\w+:)", rest, re.M | re.S)
        assert expression, name
        found[name] = expression[1]
    return found


ALERTS = alerts()
QUERIES = [*queries_of_dashboard(), *ALERTS.items()]


@pytest.mark.parametrize(("where", "query"), QUERIES, ids=[where for where, _ in QUERIES])
def test_a_query_asks_for_what_there_is(where: str, query: str) -> None:
    asked = re.findall(r"(distlock_\w+)(?:\{([^}]*)\})?", query)
    assert asked
    known: set[str] = set()
    for name, matchers in asked:
        assert name in SAMPLES, name
        assert set(re.findall(r"(\w+)\s*[=!]~?", matchers)) <= SAMPLES[name], query
        known |= SAMPLES[name]
    for grouped in re.findall(r"\bby \(([^)]*)\)", query):
        assert set(grouped.split(", ")) <= known, query


def test_every_metric_is_on_the_dashboard() -> None:
    shown = {name for _, query in queries_of_dashboard() for name in re.findall(r"distlock_\w+", query)}
    families = {name.removesuffix("_count").removesuffix("_sum").removesuffix("_bucket") for name in shown}
    assert {metric for metric in METRICS if metric not in families} == set()


#: As the page has them.
METRICS = set(re.findall(r"^\| `(distlock_\w+)` \|", (DOCS / "observability.md").read_text(), re.M))


def test_the_page_has_every_metric_with_its_labels() -> None:
    suffixes = re.compile("_(bucket|count|sum)$")
    assert {suffixes.sub("", name) for name in SAMPLES} == METRICS
    rows = re.findall(r"^\| `(distlock_\w+)` \|.*\|(.*)\|$", (DOCS / "observability.md").read_text(), re.M)
    for name, labels in rows:
        sample = name if name in SAMPLES else f"{name}_count"
        assert {"store", *re.findall(r"`(\w+)`", labels)} == SAMPLES[sample], name


# The runbook --------------------------------------------------------------------------------------------------------


def headings(level: int) -> set[str]:
    return set(re.findall(rf"^{'#' * level} (.*)$", RUNBOOK, re.M))


def test_the_runbook_has_every_alert_and_each_alert_leads_there() -> None:
    assert len(ALERTS) >= 8
    assert set(ALERTS) <= headings(3)
    assert {name for name in headings(3) if name.startswith("Distlock")} == set(ALERTS)
    assert re.findall(r'runbook: "(.*)"', RULES) == [f"docs/runbook.md#{name.lower()}" for name in ALERTS]


def test_the_runbook_has_every_error() -> None:
    errors = {
        name
        for name in distlock_web.__all__
        if isinstance(found := getattr(distlock_web, name), type) and issubclass(found, DistLockError)
    }
    assert errors - {"DistLockError"} <= headings(3)


def test_the_page_has_every_kind_of_event_and_every_field() -> None:
    page = (DOCS / "observability.md").read_text()
    for kind in events.Kind.__args__:  # type: ignore[attr-defined]
        assert f"| `{kind}` |" in page
    told = page.partition("An event has")[2].partition("Entering a lock")[0]
    private = {"claimant", "other"}
    properties = {"caller", "holder", "request_id"}
    assert set(re.findall(r"\b[a-z_]+\b", " ".join(re.findall(r"`([^`]*)`", told)))) == (
        set(events.Event._fields) - private | properties
    )
