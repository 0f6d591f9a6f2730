"""At a terminal: ``list``, which has colours, and ``run``, whose command has the keyboard."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from distlock_web import Lease, lock
from distlock_web.core.registry import registry
from distlock_web.ops.held_locks import list_all
from tests.support.cli import COMMAND, OnTerminal, alive, pid_in
from tests.support.revoking import revoke_the_lock
from tests.support.waiting import PATIENCE, eventually

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("redis_store")]


@pytest.fixture
def shell(redis_store: str, tmp_path: Path) -> Iterator[OnTerminal]:
    """An interactive shell with jobs."""
    with OnTerminal(redis_store, "bash", "--norc", "--noprofile", "-i", PS1="ready> ") as running:
        running.shows("ready> ")
        yield running


def distlock_run(*command: str, expire: int = 60) -> str:
    return " ".join([*COMMAND, "run", "-k", "x", "--expire", str(expire), "--", *command])


# list ----------------------------------------------------------------------------------------------------------------


def test_colours_are_for_terminals_and_not_where_they_are_refused(redis_store: str) -> None:
    with lock("order:7", expire=60):
        with OnTerminal(redis_store, *COMMAND, "list") as terminal:
            terminal.ends()
            assert "\x1b[1mLOCK" in terminal.shown
        with OnTerminal(redis_store, *COMMAND, "list", NO_COLOR="1") as terminal:
            terminal.ends()
            assert "\x1b" not in terminal.shown


# run -----------------------------------------------------------------------------------------------------------------


#: Counts the signals themselves, which Python's own handlers may take together.
COUNTING = """
import os, pathlib, signal, sys, time

reading, writing = os.pipe()
os.set_blocking(writing, False)
signal.set_wakeup_fd(writing)
signal.signal(signal.SIGINT, lambda *_: print("interrupted", flush=True))
pathlib.Path(sys.argv[0] + ".pid").write_text(f"{os.getpid()}\\n")
while not os.path.exists(sys.argv[0] + ".go"):
    time.sleep(0.05)
print("times", len(os.read(reading, 99)))
sys.exit(3)
"""


def test_ctrl_c_reaches_the_command_once_and_its_end_releases_the_lock(shell: OnTerminal, tmp_path: Path) -> None:
    """Many programs understand a second one as "at once"."""
    script = tmp_path / "wait.py"
    script.write_text(COUNTING)
    shell.press(distlock_run(sys.executable, str(script)) + "\n")
    pid = pid_in(tmp_path / "wait.py.pid")
    shell.press("\x03")
    shell.shows("interrupted")
    (tmp_path / "wait.py.go").touch()
    shell.shows("times 1")
    shell.shows("ready> ")
    shell.press("echo status $?\n")
    shell.shows("status 3")
    assert not alive(pid)
    assert list_all(registry()).rows == []


def test_who_waits_is_told_for_whom(redis_store: str, elsewhere: Callable[..., Lease]) -> None:
    elsewhere("x", expire=60)
    with OnTerminal(redis_store, *COMMAND, "run", "-k", "x", "--", "echo", "done") as terminal:
        terminal.shows("Somebody else holds the lock 'disLock:x'")
        terminal.shows("Waiting for it.")
        revoke_the_lock()
        terminal.shows("done")
        assert terminal.ends() == 0


def test_the_command_reads_from_the_terminal(shell: OnTerminal, tmp_path: Path) -> None:
    script = tmp_path / "ask.py"
    script.write_text("import getpass\nprint('hello', input('name? '), len(getpass.getpass('word? ')))\n")
    shell.press(distlock_run(sys.executable, str(script)) + "\n")
    shell.shows("name? ")
    shell.press("ann\n")
    shell.shows("word? ")
    shell.press("secret\n")
    shell.shows("hello ann 6")
    shell.shows("ready> ")
    shell.press("echo again\n")  # the shell has its terminal again
    shell.shows("again\r\n")


@pytest.mark.parametrize("line", ["{} </dev/null", "echo a script | {}"], ids=["nothing", "a pipe"])
def test_the_command_asks_at_the_terminal_though_its_input_comes_from_elsewhere(
    shell: OnTerminal, tmp_path: Path, line: str
) -> None:
    """As ``ssh`` and ``sudo`` ask for a password."""
    script = tmp_path / "ask.sh"
    script.write_text('printf "word? " >/dev/tty; read -r word </dev/tty; echo "got $word"\n')
    shell.press(line.format(distlock_run("sh", str(script))) + "; echo status $?\n")
    shell.shows("word? ")
    shell.press("secret\n")
    shell.shows("got secret")
    shell.shows("status 0")
    shell.shows("ready> ")


def test_ctrl_z_stops_both_and_a_command_whose_lease_is_over_meanwhile_is_ended(
    shell: OnTerminal, tmp_path: Path
) -> None:
    script = tmp_path / "ask.sh"
    script.write_text('echo asking; while read -r line; do echo "got $line"; done\n')
    shell.press(distlock_run("sh", str(script), expire=4) + "\n")
    shell.shows("asking")
    shell.press("\x1a")
    shell.is_at("ready> ")
    shell.press("fg\n")
    shell.shows("ask.sh")
    shell.press("one\n")
    shell.shows("got one")
    shell.press("\x1a")
    shell.shows("ready> ")
    eventually(lambda: list_all(registry()).rows == [], "the lease is over", PATIENCE)
    shell.press("fg; echo status $?\n")
    shell.shows("status 76")
