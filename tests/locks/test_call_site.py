"""The line of code that makes a lock."""

from __future__ import annotations

import sys
from types import FrameType

import pytest

from distlock_web.locks import call_site

_outside = call_site.outside


def test_a_line_that_is_known_is_found_without_a_walk(monkeypatch: pytest.MonkeyPatch) -> None:
    """``attach`` and ``leader`` walked through the frames each time."""
    walked = list[FrameType | None]()

    def outside(frame: FrameType | None) -> FrameType | None:
        walked.append(frame)
        return _outside(frame)

    monkeypatch.setattr(call_site, "outside", outside)
    found = {call_site.call_site(sys._getframe()) for _ in range(3)}
    assert found == {f"{__name__}:{sys._getframe().f_lineno - 1}"}
    assert len(walked) == 1
