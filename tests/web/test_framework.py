"""What every web framework has of the base class: which form of an answer a client would rather have."""

from __future__ import annotations

import pytest

from distlock_web.web.error_responses import OFFERED, OFFERED_TO_PROGRAMS
from distlock_web.web.framework import preferred

HTML, PROBLEM, JSON = OFFERED


@pytest.mark.parametrize(
    ("accept", "person", "program"),
    [
        (None, HTML, PROBLEM),
        ("", HTML, PROBLEM),
        ("*/*", HTML, PROBLEM),
        ("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", HTML, HTML),
        ("application/json", JSON, JSON),
        ("application/json, text/plain, */*", JSON, JSON),
        ("application/*", PROBLEM, PROBLEM),
        ("application/problem+json;q=0.5, text/html", HTML, HTML),
        ("text/html;q=0.1, application/json ; q=0.9", JSON, JSON),
        ("text/html;q=0, */*", PROBLEM, PROBLEM),
        ("TEXT/HTML", HTML, HTML),
        ("image/png", HTML, PROBLEM),
        ("application/json;q=soon, text/html", HTML, HTML),
        (";q=1,,", HTML, PROBLEM),
    ],
)
def test_a_client_gets_what_it_would_rather_have(accept: str | None, person: str, program: str) -> None:
    assert (preferred(accept, OFFERED), preferred(accept, OFFERED_TO_PROGRAMS)) == (person, program)
