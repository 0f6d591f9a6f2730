"""``race``: the orders of what two callers do at once, tried until one gives what no serial order gives.

A room of its own: ``scheduler`` runs one order, ``stops`` and ``at_…`` say where callers stop, ``databases`` who waits
there and how rows are put back, ``search`` which order is next, ``outcomes`` what is compared, ``report`` what is
shown. It knows none of the stores.
"""

from .run import Outcome, Race
from .scheduler import RaceRefused
from .stops import step

__all__ = ["Outcome", "Race", "RaceRefused", "step"]
