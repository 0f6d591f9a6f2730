"""What is set up so that it will hurt: the findings of ``distlock doctor``, and of a store's ``diagnose``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

#: ``error``: locks exclude no one, or cannot be taken. ``warning``: so it will be as soon as something else fails.
#: ``info``: nothing is wrong, but one should know.
Severity: TypeAlias = Literal["error", "warning", "info"]

#: The least severe first.
SEVERITIES: tuple[Severity, ...] = ("info", "warning", "error")


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong. ``docs/doctor.md`` has every code."""

    code: str  #: ``DL101``: never given to anything else
    severity: Severity
    problem: str  #: what is wrong
    harm: str  #: why that hurts
    remedy: str  #: what to set
    where: str = ""  #: the store, view or setting that it is about; the doctor fills in the store
