"""``distlock run``: one command at a time, and none that goes on without its lock."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from distlock_web.core.registry import registry
from distlock_web.web.held_locks import list_all
from tests.support.cli import alive, distlock, pid_in, started, text_of
from tests.support.revoking import revoke, revoke_the_lock
from tests.support.waiting import LONG, PATIENCE, eventually

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("redis_store")]

#: Says that it runs, and how it was ended. It ends at SIGTERM, as a program does that has something to put away.
POLITE = 'trap "echo ended >> $0.ended; exit 0" TERM; echo $$ > $0; while :; do sleep 0.05; done'
STUBBORN = 'trap "" TERM; echo $$ > $0; while :; do sleep 0.05; done'


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    """The file that a command writes its process id to."""
    return tmp_path / "pid"


def held() -> int:
    return len(list_all(registry()).rows)


def test_the_exit_status_the_input_the_output_and_what_it_is_told_pass(redis_store: str) -> None:
    big = "".join(f"{number}\n" for number in range(200_000))
    script = 'cat; echo "$DISTLOCK_KEY $DISTLOCK_NAME $DISTLOCK_FENCE" >&2; exit 7'
    ended = distlock(redis_store, "run", "--key", "nightly", "--expire", "60", "--", "sh", "-c", script, input=big)
    assert ended.returncode == 7
    assert ended.stdout == big
    assert re.fullmatch(r"nightly disLock:nightly \d{16,}\n", ended.stderr)
    assert held() == 0


def test_the_command_keeps_its_own_options_and_dashes(redis_store: str) -> None:
    for command in (["--", "echo", "--key", "--", "-n"], ["echo", "--key", "--", "-n"]):
        assert distlock(redis_store, "run", "-k", "x", *command).stdout == "--key -- -n\n"


def test_two_shells_one_command_at_a_time(redis_store: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    command = ["run", "-k", "x", "--", "sh", "-c", f"echo in $$ >> {log}; sleep 0.2; echo out $$ >> {log}"]
    with started(redis_store, *command) as one, started(redis_store, *command) as other:
        assert [one.wait(PATIENCE), other.wait(PATIENCE)] == [0, 0]
    lines = [line.split() for line in log.read_text().splitlines()]
    assert [word for word, _ in lines] == ["in", "out", "in", "out"]
    assert lines[0][1] == lines[1][1] != lines[2][1] == lines[3][1]


def test_busy(redis_store: str, marker: Path) -> None:
    with started(redis_store, "run", "-k", "x", "--", "sh", "-c", POLITE, str(marker)):
        pid_in(marker)
        refused = distlock(redis_store, "run", "-k", "x", "--no-wait", "--", "true")
        assert refused.returncode == 75
        assert "Somebody else holds the lock 'disLock:x'" in refused.stderr
        assert distlock(redis_store, "run", "-k", "x", "--wait", "0.1", "-E", "9", "--", "true").returncode == 9
        quiet = distlock(redis_store, "run", "-k", "x", "-n", "-E", "0", "--", "true")
        assert (quiet.returncode, quiet.stderr) == (0, "")


def test_kill_9_of_ours_ends_the_command_and_its_children(redis_store: str, marker: Path) -> None:
    script = f"sh -c 'trap \"\" TERM; echo $$ > {marker}.child; sleep {LONG}; sleep {LONG}' & {POLITE}"
    arguments = ["run", "-k", "x", "--expire", "30", "--kill-after", "3", "--", "sh", "-c", script, str(marker)]
    with started(redis_store, *arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        pids = [pid_in(marker), pid_in(marker.with_name("pid.child"))]
        process.kill()
        eventually(lambda: not any(map(alive, pids)), "the command has ended", PATIENCE)
    assert text_of(marker.with_name("pid.ended")) == "ended\n"  # it was asked first
    assert held() == 1  # nobody could release it: it ends by itself


def test_a_lease_that_is_lost_ends_the_command(redis_store: str, marker: Path) -> None:
    arguments = ["run", "-k", "x", "--expire", "3", "--", "sh", "-c", POLITE, str(marker)]
    with started(redis_store, *arguments) as process:
        pid = pid_in(marker)
        revoke_the_lock()
        _, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == 76
    assert "lost the lock disLock:x (revoked); the command is ended." in said
    assert text_of(marker.with_name("pid.ended")) == "ended\n"
    assert not alive(pid)


@pytest.mark.parametrize("seconds", ["0.3", "0"])
def test_a_command_that_ignores_term_is_killed(redis_store: str, marker: Path, seconds: str) -> None:
    arguments = ["run", "-k", "x", "--expire", "3", "--kill-after", seconds, "--", "sh", "-c", STUBBORN, str(marker)]
    with started(redis_store, *arguments) as process:
        pid = pid_in(marker)
        revoke_the_lock()
        assert process.wait(PATIENCE) == 76
    assert not alive(pid)


def test_on_lost_warn_lets_it_go_on(redis_store: str, marker: Path) -> None:
    script = f"echo $$ > {marker}; while [ ! -e {marker}.go ]; do sleep 0.05; done; exit 4"
    arguments = ["run", "-k", "x", "--expire", "3", "--on-lost", "warn", "--", "sh", "-c", script]
    with started(redis_store, *arguments) as process:
        pid_in(marker)
        revoke_the_lock()
        assert process.stderr is not None
        assert "(revoked); the command goes on." in process.stderr.readline()
        marker.with_name("pid.go").touch()
        assert process.wait(PATIENCE) == 4


def test_a_lock_that_was_lost_and_not_noticed_is_said_at_the_end(redis_store: str, marker: Path) -> None:
    script = f"echo $$ > {marker}; while [ ! -e {marker}.go ]; do sleep 0.05; done"
    with started(redis_store, "run", "-k", "x", "--expire", "600", "--", "sh", "-c", script) as process:
        pid_in(marker)
        revoke_the_lock()
        marker.with_name("pid.go").touch()
        _, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == 76
    assert "disLock:x" in said


def test_stopped_for_longer_than_its_lease_the_command_is_ended(redis_store: str, marker: Path) -> None:
    """Nobody renews the lock then, and the next holder does not wait for us to go on."""
    arguments = ["run", "-k", "x", "--expire", "2", "--", "sh", "-c", POLITE, str(marker)]
    with started(redis_store, *arguments) as process:
        pid = pid_in(marker)
        process.send_signal(signal.SIGSTOP)
        eventually(lambda: text_of(marker.with_name("pid.ended")), "the command has ended", PATIENCE)
        process.send_signal(signal.SIGCONT)
        assert process.wait(PATIENCE) == 76
    assert not alive(pid)


def test_it_renews_while_the_command_runs(redis_store: str) -> None:
    assert distlock(redis_store, "run", "-k", "x", "--expire", "1.5", "--", "sleep", "3").returncode == 0


@pytest.mark.parametrize("name", ["INT", "TERM", "HUP", "QUIT", "USR1", "USR2"])
def test_signals_are_passed_on(redis_store: str, marker: Path, name: str) -> None:
    script = f'trap "echo {name} >> $0.got" {name}; echo $$ > $0; while :; do sleep 0.05; done'
    with started(redis_store, "run", "-k", "x", "--", "sh", "-c", script, str(marker)) as process:
        pid_in(marker)
        process.send_signal(getattr(signal, f"SIG{name}"))
        eventually(lambda: text_of(marker.with_name("pid.got")) == f"{name}\n", f"{name} has come", PATIENCE)
        os.killpg(os.getpgid(int(marker.read_text())), signal.SIGKILL)
        assert process.wait(PATIENCE) == 128 + signal.SIGKILL


def test_a_signal_ends_the_wait_and_leaves_the_queue(redis_store: str, marker: Path) -> None:
    with started(redis_store, "run", "-k", "x", "--", "sh", "-c", POLITE, str(marker)):
        pid_in(marker)
        with started(redis_store, "run", "-k", "x", "--", "true") as waiting:
            eventually(lambda: list_all(registry()).rows[0].lock.waiters == 1, "it waits", PATIENCE)
            waiting.send_signal(signal.SIGTERM)
            assert waiting.wait(PATIENCE) == 128 + signal.SIGTERM
        assert list_all(registry()).rows[0].lock.waiters == 0


def test_it_leaves_no_child_behind(redis_store: str, marker: Path) -> None:
    ended = distlock(redis_store, "run", "-k", "x", "--", "sh", "-c", f"sleep {LONG} & echo $! > {marker}")
    assert ended.returncode == 0
    assert not alive(pid_in(marker))


def test_without_its_guard_the_command_is_ended(redis_store: str, marker: Path) -> None:
    """Else a kill -9 of ours would leave it running without its lock."""
    with started(redis_store, "run", "-k", "x", "--", "sh", "-c", POLITE, str(marker)) as process:
        group = os.getpgid(pid_in(marker))
        os.kill(group, signal.SIGKILL)
        assert process.wait(PATIENCE) == 0  # the command's own: it put its things away
    assert text_of(marker.with_name("pid.ended")) == "ended\n"
    assert held() == 0


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (["--", "no-such-command"], 127, "no-such-command: not found."),
        (["--", "/etc/passwd"], 126, "/etc/passwd: Permission denied."),
        (["--", ""], 127, ": not found."),
        ([], 64, "which command?"),
        (["--expire", "0", "--", "true"], 64, "more than 0 seconds"),
        (["--expire", "0.001", "--", "true"], 64, "0.001"),
    ],
)
def test_what_cannot_be_run(redis_store: str, args: list[str], code: int, says: str) -> None:
    ended = distlock(redis_store, "run", "-k", "x", *args)
    assert ended.returncode == code
    assert says in ended.stderr
    assert "Traceback" not in ended.stderr
    assert held() == 0


def test_a_store_that_does_not_answer(unused_tcp_port: int) -> None:
    ended = distlock(f"redis://127.0.0.1:{unused_tcp_port}/0", "run", "-k", "x", "--", "true")
    assert ended.returncode == 69
    assert "does not answer" in ended.stderr


def test_the_fence_is_the_locks_own(redis_store: str) -> None:
    inner = ["python3", "-c", "import os; print(os.environ['DISTLOCK_FENCE'])"]
    fences = [int(distlock(redis_store, "run", "-k", "x", "--", *inner).stdout) for _ in range(2)]
    assert fences[0] < fences[1]
    assert not revoke("disLock:x", fences[1])  # released
