"""``python -m example_project.demo``, from start to end, on real servers."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.request import urlopen

import httpx
import pytest

from tests.support.waiting import SOON, eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

Demo = Callable[..., "subprocess.Popen[str]"]


def test_the_shop_oversells_without_the_lock_and_never_with_it(demo: Demo) -> None:
    process = demo(SERVE="0")
    output, errors = process.communicate(timeout=150)

    assert process.returncode == 0, output + errors
    table = {line[:16].strip(): line[16:].split() for line in output.splitlines() if "ms" in line}
    stock, sold, left, oversold, *_ = map(int, table["without the lock"][:6])
    assert oversold == sold - stock > 0
    stock, sold, left, oversold, _busy, failed = map(int, table["with the lock"][:6])
    assert (sold, left, oversold, failed) == (stock, 0, 0, 0)
    stock, sold, left, oversold, _busy, failed = map(int, table["three clicks"][:6])
    assert (sold, left, oversold, failed) == (stock, 0, 0, 0)
    assert f"three clicks: {stock} orders. {2 * stock} clicks got an earlier click's answer." in output


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_everything_that_the_demo_started(demo: Demo, number: signal.Signals) -> None:
    process = demo(SERVE="1")
    shop = read_until(process, r"^Shop +(http://\S+)")
    assert process.stdout is not None
    read_until(process, "Ctrl-C")
    with urlopen(shop, timeout=10) as page:
        assert b"Flash sale" in page.read()
    family = descendants(process.pid)
    programs = {Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0] for pid in family}
    assert len(family) >= 7, programs  # Redis, and two gunicorns with two workers each

    process.send_signal(number)
    assert process.wait(timeout=30) == 0
    eventually(lambda: not any(map(alive, family)), "all have ended", SOON)


def test_the_shop_page_holds_a_lock_and_says_what_became_of_it(demo: Demo) -> None:
    shop = read_until(demo(SERVE="1"), r"^Shop +(http://\S+)")
    with httpx.Client(base_url=shop, timeout=30) as browser, ThreadPoolExecutor(2) as pool:
        [token] = re.findall('name="csrfmiddlewaretoken" value="([^"]+)"', browser.get("/").text)
        presses = pool.map(lambda _: browser.post("/stocktaking", data={"csrfmiddlewaretoken": token}), range(2))
        held, refused = sorted(presses, key=lambda answer: answer.status_code)
    assert (held.status_code, held.text) == (200, "Held, and given back.")
    assert refused.status_code == 409


def test_a_taken_port_is_named(demo: Demo) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        process = demo("--port", str(port))
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert f"Port {port} of 127.0.0.1 cannot be used" in errors
    assert "Traceback" not in errors


def test_a_redis_that_cannot_be_used_is_named(demo: Demo) -> None:
    with socket.socket() as taken:  # bound, and nobody listens
        taken.bind(("127.0.0.1", 0))
        process = demo(DISTLOCK_URL=f"redis://127.0.0.1:{taken.getsockname()[1]}/0")
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "127.0.0.1" in errors
    assert "Traceback" not in errors


def read_until(process: subprocess.Popen[str], pattern: str) -> str:
    """Read the output up to the line that matches, and give its first group (or the line)."""
    assert process.stdout is not None
    seen = []
    for line in process.stdout:
        seen.append(line)
        if found := re.search(pattern, line):
            return found[found.re.groups and 1]
    _, errors = process.communicate()
    raise AssertionError("".join(seen) + errors)


def descendants(pid: int) -> list[int]:
    children = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        children += [int(child) for child in task.read_text().split()]
    return children + [pid for child in children for pid in descendants(child)]


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
