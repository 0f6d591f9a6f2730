"""``distlock run``: one command at a time, and none that goes on without its lock."""

from __future__ import annotations

import ctypes
import errno
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from distlock_web import ConfigurationError, Lease, LeaseLost, LockBusy, lock
from distlock_web.cli import launch
from distlock_web.cli import run as run_module
from distlock_web.cli.exit_codes import CommandFailed
from distlock_web.cli.main import execute
from distlock_web.cli.output import Output
from distlock_web.cli.parser import parser
from distlock_web.cli.run import CommandRun, Interrupted
from distlock_web.core import errors
from distlock_web.core.errors import DistLockError, KeyReused
from distlock_web.core.registry import registry
from distlock_web.ops.held_locks import list_all
from distlock_web.testing.servers import RedisServer, free_port
from tests.support.cli import alive, distlock, environment, pid_in, started, text_of
from tests.support.revoking import revoke_the_lock
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


def test_busy(redis_store: str, marker: Path) -> None:
    with started(redis_store, "run", "-k", "x", "--", "sh", "-c", POLITE, str(marker)):
        pid_in(marker)
        refused = distlock(redis_store, "run", "-k", "x", "--no-wait", "--", "true")
        assert refused.returncode == 75
        assert "Somebody else holds the lock 'disLock:x'" in refused.stderr
        assert refused.stderr.endswith("The command was not run.\n")
        assert distlock(redis_store, "run", "-k", "x", "--wait", "0.1", "-E", "9", "--", "true").returncode == 9
        skipped = distlock(redis_store, "run", "-k", "x", "-n", "-E", "0", "--", "true")
        assert skipped.returncode == 0
        assert skipped.stderr.endswith("The command was not run.\n")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with its parent")
def test_kill_9_of_ours_ends_the_command(redis_store: str, marker: Path) -> None:
    arguments = ["run", "-k", "x", "--expire", "30", "--", "sh", "-c", STUBBORN, str(marker)]
    with started(redis_store, *arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        pid = pid_in(marker)
        process.kill()
        eventually(lambda: not alive(pid), "the command has ended", PATIENCE)
    assert held() == 1  # nobody could release it: it ends by itself


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with its parent")
def test_a_command_whose_parent_has_died_at_once_is_not_begun(marker: Path) -> None:
    """The kernel tells of no death that came before it was asked to."""
    former = os.getppid()  # not the parent of what is launched
    command = [sys.executable, "-I", "-S", launch.__file__, str(former), "touch", str(marker)]
    assert subprocess.run(command, check=False).returncode == 128 + signal.SIGKILL
    assert not marker.exists()


#: An orphan ends with 0 while the command still runs, outside of its group.
ORPHAN = '( setsid sh -c \'echo $$ > "$0"; exit 0\' "$0" & ); until [ -s "$0" ]; do sleep 0.05; done; '
#: For as long as it is a zombie it is in /proc.
IS_REAPED = 'for i in $(seq 200); do [ -e "/proc/$(cat "$0")" ] || exit 3; sleep 0.05; done; exit 4'
PR_SET_CHILD_SUBREAPER = 36
#: It has no other number, but does what it would do as PID 1.
AS_PID_1 = "from distlock_web.cli import main, run; run._is_first_process = lambda: True; main.console()"


def become_subreaper() -> None:
    """Who inherits orphans, as PID 1 does."""
    assert ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0


@pytest.mark.skipif(sys.platform != "linux", reason="subreapers are Linux's")
@pytest.mark.parametrize(
    ("program", "command"),
    [
        (["-m", "distlock_web"], ORPHAN + "sleep 0.5; exit 3"),
        (["-c", AS_PID_1], ORPHAN + IS_REAPED),
    ],
    ids=["subreaper", "PID 1"],
)
def test_the_end_of_an_orphan_is_not_the_end_of_the_command(
    redis_store: str, marker: Path, program: list[str], command: str
) -> None:
    """It was taken for it: the job was killed in the middle, with exit status 0. PID 1 reaps it."""
    ended = subprocess.run(
        [sys.executable, *program, "run", "-k", "x", "--", "sh", "-c", command, str(marker)],
        env=environment(redis_store), capture_output=True, text=True, timeout=PATIENCE, check=False,
        start_new_session=True, preexec_fn=become_subreaper,
    )  # fmt: skip
    assert ended.returncode == 3, ended.stderr
    assert held() == 0


def ignoring(*signums: int) -> Callable[[], None]:
    def ignore() -> None:
        for signum in signums:
            signal.signal(signum, signal.SIG_IGN)

    return ignore


def test_a_parent_that_ignores_the_ends_of_its_children(redis_store: str) -> None:
    """The exit status was thrown away, and the lock renewed for ever."""
    ended = distlock(redis_store, "run", "-k", "x", "--", "sh", "-c", "exit 5", preexec_fn=ignoring(signal.SIGCHLD))
    assert ended.returncode == 5


def test_what_is_ignored_stays_ignored_and_the_rest_is_passed_on(redis_store: str, marker: Path) -> None:
    """As in the background of a script, where SIGINT and SIGQUIT are ignored."""
    arguments = ["run", "-k", "x", "--", "sh", "-c", POLITE, str(marker)]
    with started(redis_store, *arguments, preexec_fn=ignoring(signal.SIGINT, signal.SIGQUIT)) as process:
        pid = pid_in(marker)
        for signum in (signal.SIGINT, signal.SIGQUIT):
            process.send_signal(signum)
            os.kill(pid, signum)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0
    assert text_of(marker.with_name("pid.ended")) == "ended\n"


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", "<&- >&- 2>&-"])
def test_a_closed_stream_does_not_keep_the_command_from_running(redis_store: str, marker: Path, closed: str) -> None:
    command = [sys.executable, "-m", "distlock_web", "run", "-k", "x", "--", "touch", str(marker)]
    ended = subprocess.run(["sh", "-c", f'"$@" {closed}', "sh", *command], env=environment(redis_store), check=False)
    assert ended.returncode == 0
    assert marker.exists()


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


def test_stopped_for_longer_than_its_lease_the_command_is_ended_when_it_goes_on(redis_store: str, marker: Path) -> None:
    arguments = ["run", "-k", "x", "--expire", "1", "--", "sh", "-c", POLITE, str(marker)]
    with started(redis_store, *arguments) as process:
        pid = pid_in(marker)
        process.send_signal(signal.SIGSTOP)
        eventually(lambda: held() == 0, "the lease is over", PATIENCE)
        process.send_signal(signal.SIGCONT)
        assert process.wait(PATIENCE) == 76
    assert text_of(marker.with_name("pid.ended")) == "ended\n"
    assert not alive(pid)


def test_a_store_that_falls_silent_ends_the_command_with_the_lease(
    make_redis: Callable[..., RedisServer], marker: Path
) -> None:
    server = make_redis()
    options = ["--expire", "1.5", "--kill-after", "0.2"]
    with started(server.url, "run", "-k", "x", *options, "--", "sh", "-c", STUBBORN, str(marker)) as process:
        pid = pid_in(marker)
        server.pause()
        assert process.wait(PATIENCE) == 76
    assert not alive(pid)


def test_a_release_that_fails_is_said_and_hides_not_what_the_command_has_returned(
    make_redis: Callable[..., RedisServer], marker: Path
) -> None:
    server = make_redis()
    script = "echo $$ > $0; while [ ! -e $0.go ]; do sleep 0.05; done; exit 7"
    arguments = ["run", "-k", "x", "--expire", "600", "--", "sh", "-c", script, str(marker)]
    with started(server.url, *arguments) as process:
        pid_in(marker)
        server.stop()
        marker.with_name("pid.go").touch()
        _, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == 7
    assert "Lock 'disLock:x' could not be released, it ends within its lease: " in said


def test_signals_are_passed_on(redis_store: str, marker: Path) -> None:
    names = ["INT", "TERM", "HUP", "QUIT", "USR1", "USR2"]
    traps = " ".join(f'trap "echo {name} >> $0.got" {name};' for name in names)
    script = f"{traps} echo $$ > $0; while :; do sleep 0.05; done"
    heard = partial(signal.signal, signal.SIGHUP, signal.SIG_DFL)  # also where nohup has started the tests
    with started(redis_store, "run", "-k", "x", "--", "sh", "-c", script, str(marker), preexec_fn=heard) as process:
        pid = pid_in(marker)
        for number, name in enumerate(names, 1):
            process.send_signal(getattr(signal, f"SIG{name}"))
            got = marker.with_name("pid.got")
            eventually(lambda: text_of(got).split() == names[:number], f"{name} has come", PATIENCE)  # noqa: B023
        os.killpg(os.getpgid(pid), signal.SIGKILL)
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


#: A parent of ``distlock run`` that inherits orphans, and reaps none, as PID 1 of many containers.
REAPS_NOBODY = (
    "import ctypes, subprocess, sys; ctypes.CDLL(None).prctl(36, 1, 0, 0, 0); sys.exit(subprocess.call(sys.argv[1:]))"
)


@pytest.mark.skipif(sys.platform != "linux", reason="subreapers are Linux's")
def test_it_does_not_wait_for_a_zombie(redis_store: str) -> None:
    begun = time.monotonic()
    job = ["run", "-k", "x", "--kill-after", "30", "--", "sh", "-c", f"sleep {LONG} & exit 3"]
    command = [sys.executable, "-c", REAPS_NOBODY, sys.executable, "-m", "distlock_web", *job]
    ended = subprocess.run(command, env=environment(redis_store), check=False, start_new_session=True)
    assert ended.returncode == 3
    assert time.monotonic() - begun < 30, "it waited for what has ended"


def test_one_look_at_proc_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that answers SIGTERM by a child that cleans up: it was seen as ended, and its child not at all."""
    run, _ = running("true")
    ended, lives = (f"{state} 1 77 {' '.join('1' * 20)}".split() for state in "ZS")
    looks = iter([[ended], [ended, lives], [ended], [ended]])
    monkeypatch.setattr(run_module, "_processes", lambda: next(looks))
    monkeypatch.setattr(os, "killpg", lambda *_: None)
    monkeypatch.setattr(os, "waitpid", lambda *_: (0, 0))
    run._pid = 77
    assert run._lives()
    assert not run._lives()


def test_what_nobody_reads_changes_no_exit_status(redis_store: str) -> None:
    reader, stderr = os.pipe()
    os.close(reader)

    def status(*args: str) -> int:
        command = [sys.executable, "-m", "distlock_web", "run", "-k", "x", *args]
        return subprocess.run(command, env=environment(redis_store), stderr=stderr, check=False).returncode

    assert status("--once", "1h", "--", "true") == 0
    assert status("--once", "1h", "--", "true") == 0, "was done"
    with lock("busy", expire=LONG):
        assert status("-k", "busy", "--wait", "0", "--", "true") == 75
    assert status("-k", "other") == 64, "the command is missing"
    assert status("-k", "other", "--", "/nowhere") == 127
    os.close(stderr)


def running(*args: str) -> tuple[CommandRun, StringIO]:
    """A run in this process, and what it says."""
    said = StringIO()
    return CommandRun(parser("distlock", stores=False).parse_args(["run", "-k", "x", *args]), Output(said)), said


def test_a_signal_whose_exception_was_dropped_is_not_lost() -> None:
    """Python drops what a handler raises in a garbage collection: the command was run, and nobody ended it."""
    run, _ = running("true")
    with run.signals():
        with suppress(Interrupted):
            signal.raise_signal(signal.SIGTERM)
        with pytest.raises(Interrupted):
            run.run()
    assert held() == 0


@pytest.mark.parametrize("what", ["a signal", "the loss of the lock"])
def test_what_comes_while_the_command_begins_is_not_lost(
    what: str, marker: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command was begun, and went on."""
    run, said = running("--expire", "4", "touch", str(marker))
    spawn = os.posix_spawn

    def late(*args: Any, **options: Any) -> int:
        if what == "a signal":
            signal.raise_signal(signal.SIGTERM)
        else:
            revoke_the_lock()
            eventually(lambda: "the command is ended" in said.getvalue(), "the loss is noticed", PATIENCE)
        return spawn(*args, **options)

    monkeypatch.setattr(os, "posix_spawn", late)
    with run.signals():
        assert run.run() == (128 + signal.SIGTERM if what == "a signal" else 76)
    assert not marker.exists()


def test_the_end_after_a_loss_does_not_put_off_the_kill() -> None:
    """What ignored SIGTERM had the seconds of ``--kill-after`` twice, and wrote on without the lock."""
    run, _ = running("--kill-after", "500", "true")
    with run.signals():
        run._end()
        left = signal.getitimer(signal.ITIMER_REAL)[0]
        time.sleep(0.01)
        run._end()
        assert 0 < signal.getitimer(signal.ITIMER_REAL)[0] < left


def test_no_process_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cron saw a traceback and 1, which may be the command's own."""

    def refuse(*args: object, **options: object) -> None:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(os, "posix_spawn", refuse)
    run, _ = running("true")
    with run.signals(), pytest.raises(CommandFailed, match="true: Resource temporarily") as caught:
        run.run()
    assert caught.value.exit_code == 126
    assert held() == 0


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (["--", "no-such-command"], 127, "no-such-command: not found."),
        (["--", "/etc/passwd"], 126, "/etc/passwd: Permission denied."),
        (["--", ""], 127, ": not found."),
        ([], 64, "the command is missing"),
        (["--expire", "0", "--", "true"], 64, "greater than 0"),
        (["--wait", "soon", "--", "true"], 64, "--wait/-w: it is 'soon'; it has to be a number of seconds, 0 or more"),
        (["--expire", "30000ms", "--wait", "1m", "--", "sh", "-c", "exit 7"], 7, ""),
        (["--expire", "0.001", "--", "true"], 64, "0.001"),
    ],
)
def test_what_cannot_be_run(redis_store: str, args: list[str], code: int, says: str) -> None:
    ended = distlock(redis_store, "run", "-k", "x", *args)
    assert ended.returncode == code
    assert says in ended.stderr
    assert "Traceback" not in ended.stderr
    assert held() == 0


def test_a_store_that_does_not_answer() -> None:
    ended = distlock(f"redis://127.0.0.1:{free_port()}/0", "run", "-k", "x", "--", "true")
    assert ended.returncode == 69
    assert ended.stderr.startswith("distlock: The lock 'x' was not taken, and the command was not run. ")
    assert "does not answer" in ended.stderr


ERRORS = [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, DistLockError)]
CODES = {LockBusy: 75, LeaseLost: 76, ConfigurationError: 64, KeyReused: 64}


@pytest.mark.parametrize("moment", ["before the command", "after it"])
@pytest.mark.parametrize("kind", ERRORS)
def test_no_error_of_ours_has_a_status_that_may_be_the_commands(
    monkeypatch: pytest.MonkeyPatch, kind: type[DistLockError], moment: str
) -> None:
    """Such as an error of the database that has no name here: 1, and cron took it for the job's."""
    error = kind.__new__(kind, "words of it")

    @contextmanager
    def fails(*args: object, **options: object) -> Iterator[Lease]:
        if moment == "after it":
            with lock("x") as lease:
                yield lease
        raise error

    monkeypatch.setattr(run_module, "lock", fails)
    with pytest.raises(CommandFailed) as caught:
        execute(["run", "-k", "x", "--", "true"], "distlock")
    code = caught.value.exit_code
    assert code == next((CODES[each] for each in kind.__mro__ if each in CODES), 69)
    if code == 69:
        assert str(caught.value).endswith("words of it")
        assert ("the command was not run" in str(caught.value)) is (moment == "before the command")


#: What leaves a child running, before `distlock run` begins: as the start of a project may.
STARTS_A_CHILD = """
import subprocess, sys
from distlock_web.cli.main import execute
child = subprocess.Popen(["sh", "-c", "exit 5"])
assert execute(["run", "-k", "x", "--", "sh", "-c", "sleep 0.3; exit 7"], "distlock") == 7
assert child.wait() == 5, child.returncode
"""


def test_the_end_of_another_child_is_left_to_who_started_it(redis_store: str) -> None:
    """`manage.py distlock run` took the status of what the project's start had left running: it was 0 for it."""
    ended = subprocess.run(
        [sys.executable, "-c", STARTS_A_CHILD], env=environment(redis_store), capture_output=True, text=True,
        timeout=PATIENCE, check=False, start_new_session=True,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr


def test_a_lock_that_was_lost_and_not_noticed_is_said_at_the_end(redis_store: str, marker: Path) -> None:
    script = f"echo $$ > {marker}; while [ ! -e {marker}.go ]; do sleep 0.05; done"
    with started(redis_store, "run", "-k", "x", "--expire", "600", "--", "sh", "-c", script) as process:
        pid_in(marker)
        revoke_the_lock()
        marker.with_name("pid.go").touch()
        _, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == 76
    assert "disLock:x" in said


@pytest.mark.timing
def test_it_renews_while_the_command_runs(redis_store: str) -> None:
    assert distlock(redis_store, "run", "-k", "x", "--expire", "1.5", "--", "sleep", "3").returncode == 0
