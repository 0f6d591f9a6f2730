"""Mutants of our code, by mutmut: each is wrong in one place, and the tests of its subject, or mypy, have to find it.

``make mutants`` tries all of them, file by file; ``ARGS="engine hold"`` those of these files; ``ARGS="engine --again"``
those that survived the last time, were found by their time-out alone, or were not tried. Those that may survive are in
``survivors.toml``, each with the reason: another one fails the run, and so does one that does not survive any more.

mutmut works in a copy of the project, below ``build/mutants``: each function there is one that chooses the mutant to
run. What mypy finds is not run. Of the others mutmut runs the tests that come through the function, up to the first
that fails, each time in a fork of a process that has imported everything.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from .subjects import FILES, NOT_HERE, TEXTS

PROJECT = Path(__file__).parents[3]
WORK = PROJECT / "build" / "mutants"
PACKAGE = "distlock_web"
KNOWN = Path(__file__).with_name("survivors.toml")
#: Of all mutants of a file, how many may survive.
MOST = 0.1
#: Seconds after which a test has failed that takes a few hundredths of one: most of what hangs.
_PATIENCE = "20"

#: By mutmut's exit code of a mutant: what became of it.
_FATES = {
    0: "survived",
    -24: "found by its time-out",
    5: "not run by any test",
    33: "not run by any test",
    37: "found by mypy",
    None: "not tried",
}

#: Asked of mutmut, in the copy: the mutants of a file and what became of them, and how those that survive differ.
_RESULTS = """
import json, sys
from mutmut.mutation.data import SourceFileMutationData
from mutmut.mutation.diff_apply import get_diff_for_mutant
data = SourceFileMutationData(path=sys.argv[1])
data.load()
shown = {name: get_diff_for_mutant(name, path=sys.argv[1]) for name, code in data.exit_code_by_key.items()
    if code in (0, 5, 33)}
json.dump([[name, code, shown.get(name, "")] for name, code in data.exit_code_by_key.items()], sys.stdout)
"""


class Mutant(NamedTuple):
    name: str
    fate: str
    #: As survivors.toml has it: the function, what stands there, and what stands there instead.
    text: str


def main() -> int:
    parser = argparse.ArgumentParser(prog="make mutants")
    parser.add_argument("files", nargs="*", help=f"{', '.join(FILES)}; left out: all")
    parser.add_argument(
        "--again",
        action="store_true",
        help="those that survived, were found by their time-out alone, or were not tried",
    )
    parser.add_argument("--every", type=int, choices=(2, 5, 10), default=1, help="a sample: one of so many")
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    unknown = sorted({*options.files} - FILES.keys())
    if unknown:
        parser.error(f"{', '.join(unknown)}: no file of {', '.join(FILES)}")
    wrong = [name for name in options.files or FILES if not _try(name, options)]
    if wrong:
        print(f"Not as {KNOWN.name} says: {', '.join(wrong)}")
    return bool(wrong)


def _try(name: str, options: argparse.Namespace) -> bool:
    """Whether those of this file survive that may, and no others."""
    copy = WORK / name
    if not options.again:
        shutil.rmtree(copy, ignore_errors=True)
    _copy(copy, name)
    which: list[str] = []
    if options.again:
        # A time-out on a busy machine has found nothing perhaps.
        unsure = _FATES[-24], _FATES[None]
        which = [mutant.name for mutant in _mutants(copy, name) if mutant.text or mutant.fate in unsure]
    elif options.every > 1:
        # By the last digits of their numbers: mutmut gives each function's mutants numbers of their own.
        digits = "".join(str(digit) for digit in range(0, 10, options.every))
        which = [f"*__mutmut_*[{digits}]"]
    if which or not options.again:
        _mutmut(copy, name, which, options.jobs)
    return _judge(name, _mutants(copy, name), whole=options.every == 1)


def _copy(copy: Path, name: str) -> None:
    """The project's files that git knows, or would; and mutmut's settings for this file."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=PROJECT,
        capture_output=True,
        check=True,
    ).stdout.decode()
    for file in listed.split("\0"):
        source, target = PROJECT / file, copy / file
        if file and source.is_file() and not (target.is_file() and target.stat().st_mtime >= source.stat().st_mtime):
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)
    source_file, tests = FILES[name]
    marks = "not slow and not nightly and not alone"
    others = " and ".join(f"not {word}" for word in NOT_HERE)
    settings = {
        "source_paths": [PACKAGE],
        "only_mutate": [f"{PACKAGE}/{source_file}"],
        "do_not_mutate_patterns": TEXTS,
        "also_copy": ["docs", "README.md", "example_project", "benchmarks", "manage.py"],
        "pytest_add_cli_args_test_selection": tests,
        "pytest_add_cli_args": ["-m", marks, "-k", others, "-p", "no:cacheprovider"],
        "type_check_command": [
            sys.executable,
            "-m",
            "mypy",
            "--no-warn-unused-ignores",
            "--no-warn-return-any",
            "--output",
            "json",
            f"{PACKAGE}/{source_file}",
        ],
        "process_isolation": "forkserver",  # its tests start no thread in the process that forks
        "timeout_multiplier": "6",  # of all its tests: a busy machine finds nothing; what hangs fails by _PATIENCE
        "timeout_constant": "2",
    }
    lines = ["[mutmut]"]
    for key, value in settings.items():
        lines.append(f"{key} = {value}" if isinstance(value, str) else "\n    ".join([f"{key} =", *value]))
    (copy / "setup.cfg").write_text("\n".join(lines) + "\n", "utf-8")


def _mutmut(copy: Path, name: str, which: list[str], jobs: int) -> None:
    environment = {
        **os.environ,
        "MYPY_CACHE_DIR": str(WORK / "mypy"),
        "PYTHONHASHSEED": "0",
        "PYTEST_TIMEOUT": _PATIENCE,
    }
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("run.py"), "run", "--max-children", str(jobs), *which],
        cwd=copy,
        env=environment,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        said = done.stdout.replace("\r", "\n")
        raise SystemExit(f"mutmut failed at {name}:\n{said[-1000:]}\n{done.stderr[-2000:]}")


def _mutants(copy: Path, name: str) -> list[Mutant]:
    file = f"{PACKAGE}/{FILES[name][0]}"
    told = subprocess.run([sys.executable, "-c", _RESULTS, file], cwd=copy, capture_output=True, text=True, check=True)
    return [
        Mutant(mutant, _FATES.get(code, "found"), _text(mutant, diff)) for mutant, code, diff in json.loads(told.stdout)
    ]


def _text(mutant: str, diff: str) -> str:
    """``Hold.check: if not due: → if due:``, whatever else stands in that file by now."""
    if not diff:
        return ""
    function = mutant.rpartition(".")[2].rpartition("__mutmut_")[0].removeprefix("x_").removeprefix("xǁ")
    changed = dict.fromkeys("-+", "")
    for line in diff.splitlines()[2:]:
        if line[:1] in changed:
            changed[line[0]] += f" {line[1:].strip()}"
    return f"{function.replace('ǁ', '.')}:{changed['-']} →{changed['+']}"


def _judge(name: str, mutants: list[Mutant], *, whole: bool) -> bool:
    known = Counter(
        text for reason in tomllib.loads(KNOWN.read_text("utf-8")).get(name, ()) for text in reason["mutants"]
    )
    survivors = Counter(mutant.text for mutant in mutants if mutant.text)
    tried = [mutant for mutant in mutants if mutant.fate != "not tried"]
    fates = Counter(mutant.fate for mutant in tried)
    said = ", ".join(f"{count} {fate}" for fate, count in fates.most_common())
    print(f"{FILES[name][0]}: {len(tried)} of {len(mutants)} mutants: {said}", flush=True)
    new, gone = survivors - known, known - survivors if whole else Counter[str]()
    for text in new:
        print(f"  survives, and is not in {KNOWN.name}: {text}")
    for text in gone:
        print(f"  does not survive any more, or is another one now: {text}")
    too_many = sum(survivors.values()) > MOST * len(mutants if whole else tried)
    if too_many:
        print(f"  more than {MOST:.0%} survive")
    return not (new or gone or too_many or (whole and len(tried) < len(mutants)))


if __name__ == "__main__":
    sys.exit(main())
