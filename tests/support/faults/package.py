"""Which copy of our package a process of these runs has: the usual one, or a mutant's."""

from __future__ import annotations

import os
import sys

#: The folder that has the copy.
VARIABLE = "DISTLOCK_FAULTS_PACKAGE"


def use_package() -> None:
    """Before anything of ours is imported."""
    folder = os.environ.get(VARIABLE)
    if folder and folder not in sys.path:
        sys.path.insert(0, folder)
