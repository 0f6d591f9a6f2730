"""Formats of what is stored, by number: values and rows of locks, nodes, tickets, records of ``once``.

Old and new processes run side by side while a release is rolled out. So a process reads the newest format and the one
before, refuses what is newer, and writes the older one until the setting ``FORMAT`` says that all processes read the
newer. A thing whose form is the same in both has no number, and so has all of format 1. A number stands where each
reader looks in any case, also one of format 1, and where it costs no request:

    Redis, Redlock   the first line of a lock's value, ``distlock/3``; of a hash a field of this name
    SQL              the state of the lock's row, ``format 3``
    ZooKeeper        the data of a node, an object: ``{"format": 3}``
    a ticket         its last field, an object
    a record         a field of its object

A lock says it for its queue, too: a caller that joins it marks the lock itself.
"""

from __future__ import annotations

from .errors import ConfigurationError

#: What differs: the records of ``once``. See ``locks/records.py``.
NEWEST = 2
#: What is written until the settings say that all processes read the newest.
BEFORE = NEWEST - 1


def refusal(what: str, found: object) -> ConfigurationError:
    """For a thing of a newer format: ``what`` names it, ``found`` is the number."""
    return ConfigurationError(
        f"{what} has been stored in format {found} by a newer version of distlock_web. This process reads formats "
        f"{BEFORE} and {NEWEST}. Update it, or let the newer processes write an older format until it is: "
        f'"FORMAT": {NEWEST} in their DISTLOCK.'
    )
