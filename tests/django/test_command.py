"""A management command of a project's own, under a lock."""

from __future__ import annotations

from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import BaseCommand

from distlock_web import LockBusy, distributed_lockable


class Report(BaseCommand):
    @distributed_lockable(key="report", expire=10)
    def handle(self, *args: Any, **options: Any) -> str:
        return "done"


def test_a_management_command_under_a_lock(store: str, elsewhere: Any) -> None:
    out = StringIO()
    call_command(Report(), stdout=out)
    assert out.getvalue() == "done\n"
    elsewhere("report")
    with pytest.raises(LockBusy):
        call_command(Report(), stdout=out)
