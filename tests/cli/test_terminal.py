"""At a terminal: ``list``, which has colours, and ``run``, whose command has the keyboard."""

from __future__ import annotations

import os
import signal
import sys
import termios
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from distlock_web import Lease, lock
from distlock_web.core.registry import registry
from distlock_web.web.held_locks import list_all
from tests.support.cli import COMMAND, OnTerminal, alive, distlock, pid_in
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


def test_a_name_that_the_output_cannot_encode_is_shown_still(redis_store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    with lock("größe", expire=60):
        for command in (["list"], ["show", "größe"]):
            ended = distlock(redis_store, *command)
            assert (ended.returncode, ended.stderr) == (0, "")
            assert "gr\\xf6\\xdfe" in ended.stdout


def test_colours_are_for_terminals_and_not_where_they_are_refused(redis_store: str) -> None:
    with lock("order:7", expire=60):
        with OnTerminal(redis_store, *COMMAND, "list") as terminal:
            terminal.ends()
            assert "\x1b[1mLOCK" in terminal.shown
        with OnTerminal(redis_store, *COMMAND, "list", NO_COLOR="1") as terminal:
            terminal.ends()
            assert "\x1b" not in terminal.shown


# run -----------------------------------------------------------------------------------------------------------------


def test_ctrl_c_ends_the_command_and_releases_the_lock(redis_store: str, shell: OnTerminal, tmp_path: Path) -> None:
    script = tmp_path / "wait.sh"
    script.write_text('trap "echo interrupted; exit 3" INT; echo $$ > $1; while :; do sleep 0.05; done\n')
    shell.press(distlock_run("sh", str(script), str(tmp_path / "pid")) + "\n")
    pid = pid_in(tmp_path / "pid")
    shell.press("\x03")
    shell.shows("interrupted")
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


def test_the_terminal_stays_with_a_pager(shell: OnTerminal, tmp_path: Path) -> None:
    """``distlock run … | less``: the command does not ask for the terminal, and does not take it."""
    command, pager = tmp_path / "command.sh", tmp_path / "pager.sh"
    command.write_text("echo line; while [ ! -e $0.go ]; do sleep 0.05; done\n")
    pager.write_text('read -r line; printf "more? "; read -r answer </dev/tty; echo "got $answer"\n')
    shell.press(distlock_run("sh", str(command)) + f" | sh {pager}\n")
    shell.shows("more? ")
    shell.press("yes\n")
    shell.shows("got yes")
    (tmp_path / "command.sh.go").touch()
    shell.shows("ready> ")


def test_ctrl_z_stops_neither(shell: OnTerminal, tmp_path: Path) -> None:
    """One of the two would go on without the other: the lock would end under the command, or be renewed for nothing."""
    script = tmp_path / "ask.sh"
    script.write_text('read -r line; echo "first $line"; read -r line; echo "then $line"\n')
    shell.press(distlock_run("sh", str(script)) + "\n")
    shell.press("one\n")
    shell.shows("first one")
    shell.press("\x1atwo\n")
    shell.shows("then two")
    shell.shows("ready> ")


def test_in_the_background_it_waits_for_the_terminal_until_fg(shell: OnTerminal, tmp_path: Path) -> None:
    script = tmp_path / "ask.sh"
    script.write_text('echo asking; read -r line; echo "got $line"\n')
    shell.press(distlock_run("sh", str(script)) + " & wait; echo waited\n")
    shell.shows("asking\r\n")
    shell.shows("waited\r\n")  # for a job that has stopped bash does not wait
    shell.shows("ready> ")
    shell.press("fg\n")
    shell.press("one\n")
    shell.shows("got one")
    shell.shows("ready> ")


def test_after_fg_a_command_whose_lease_is_over_is_ended(shell: OnTerminal, tmp_path: Path) -> None:
    script = tmp_path / "ask.sh"
    script.write_text('trap ": > $0.on" CONT; echo asking; read -r line; : > $0.on\n')
    shell.press(distlock_run("sh", str(script), expire=1) + " & wait; echo waited\n")
    shell.shows("asking\r\n")
    shell.shows("waited\r\n")  # it has stopped
    eventually(lambda: list_all(registry()).rows == [], "the lease is over", PATIENCE)
    shell.press("fg; echo status $?\n")
    shell.shows("status 76")
    assert not (tmp_path / "ask.sh.on").exists()


def test_the_terminals_settings_are_put_back_after_a_command_that_was_killed(
    redis_store: str, shell: OnTerminal, tmp_path: Path
) -> None:
    script = tmp_path / "raw.py"
    script.write_text(
        "import os, pathlib, sys, time, tty\n"
        "tty.setraw(0)\n"
        "pathlib.Path(sys.argv[1]).write_text(f'{os.getpid()}\\n')\n"
        "time.sleep(60)\n"
    )
    before = shell.settings()
    shell.press(distlock_run(sys.executable, str(script), str(tmp_path / "pid")) + "\n")
    pid = pid_in(tmp_path / "pid")
    assert not shell.settings()[3] & termios.ICANON
    os.kill(pid, signal.SIGKILL)
    shell.shows("ready> ")
    shell.press("echo $?\n")
    shell.shows("137")
    assert shell.settings()[3] & termios.ISIG == before[3] & termios.ISIG
