"""What is set up so that it will hurt: the findings of ``distlock doctor``, and what a backend may offer to it.

Both methods are optional: a backend that has nothing to say leaves them out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias, runtime_checkable

#: ``error``: locks exclude nobody, or cannot be taken. ``warning``: so it will be as soon as something else fails.
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


@runtime_checkable
class Diagnosable(Protocol):
    """A backend that can look at its server."""

    def diagnose(self) -> Sequence[Finding]:
        """What is wrong with the server's settings, as seen from here. Blocking; changes nothing there.

        Raises ``BackendUnavailable`` if the server does not answer.
        """


@runtime_checkable
class Adopting(Protocol):
    """A backend of several servers, which store with whom they vote."""

    def adopt(self) -> str:
        """Make the list of servers in its settings count, in place of the one that they store; what was done, in words.

        Blocking. Raises ``BackendUnavailable`` if one of them does not answer, ``ConfigurationError`` where two lists
        would count.
        """


@runtime_checkable
class Preparable(Protocol):
    """A backend whose server needs something before the first lock, such as tables."""

    def prepare(self) -> str:
        """Make what is missing there; what was done, in words. Blocking; may be called again."""


@runtime_checkable
class TableMaking(Preparable, Protocol):
    """A backend whose locks are kept in tables."""

    makes_tables: bool  #: whether ``distlock run`` may make them by ``prepare``
