"""What ``distlock run`` starts, and what then becomes the command: the kernel is asked first to end it with us.

A script for an interpreter that loads nothing else. Only the process itself can ask that. Between a fork and an exec a
process that had threads may hang in Python, so it is asked behind an exec.
"""

import os
import signal
import sys

NOT_EXECUTABLE, NOT_FOUND = 126, 127
_PR_SET_PDEATHSIG = 1


def main(parent: int, argv: list[str]) -> int:
    """``parent``: the process that holds the lock. Returns only if there is no command to become."""
    if sys.platform == "linux" and not _ends_with(parent):
        return 128 + signal.SIGKILL
    for signum in (signal.SIGPIPE, signal.SIGXFSZ):  # which Python ignores, and a program expects
        signal.signal(signum, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # now, and not a KeyboardInterrupt
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    try:
        os.execvp(argv[0], argv)  # noqa: S606 - that is what it is for
    except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: an empty word is no program's name
        _say(f"{argv[0]}: not found.")
        return NOT_FOUND
    except OSError as error:
        _say(f"{argv[0]}: {error.strerror}.")
        return NOT_EXECUTABLE


def _say(text: str) -> None:
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # without a reader the exit status says it
    try:
        os.write(2, os.fsencode(f"distlock: {text}\n"))
    except OSError:
        pass


def _ends_with(parent: int) -> bool:
    """Have us killed when the thread ends that has started us, the main thread of our parent. False: it has ended."""
    try:
        import ctypes
    except ImportError:  # a Python that was built without libffi: as on systems that cannot be asked
        return True
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    return os.getppid() == parent  # it may have died before the kernel knew


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
