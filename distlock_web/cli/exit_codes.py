"""Exit codes: those of sysexits.h where it has one, so that ``run`` can tell its own from a command's."""

from __future__ import annotations

DONE = 0
#: ``show``, ``release``: not held, or not by that holder, or not confirmed. ``doctor``: there are findings.
NO = 1
USAGE = 64
UNAVAILABLE = 69  #: a store does not answer
UNWRITTEN = 74  #: what was to be said on standard output could not be written
BUSY = 75  #: another caller has the lock; ``run --busy-exit-code`` says another
LOST = 76  #: the lock was lost while the command ran, and the command was ended
NOT_EXECUTABLE = 126
NOT_FOUND = 127
SIGNALLED = 128  #: plus the number of the signal

EPILOG = f"""\
exit status:
  {DONE:3}  done
  {NO:3}  not held or not done, not by that holder, not confirmed; the doctor found something
  {USAGE:3}  wrong usage or settings
  {UNAVAILABLE:3}  a store does not answer
  {UNWRITTEN:3}  the output could not be written; the command itself may be done
  {BUSY:3}  run: somebody else has the lock
  {LOST:3}  run: the lock was lost while the command ran
  The rest are run's command's own: its exit status, {NOT_EXECUTABLE} or {NOT_FOUND} if it
  cannot be started, {SIGNALLED}+n if signal n ended it."""


class CommandFailed(Exception):
    """What goes to standard error, and the exit code."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code
