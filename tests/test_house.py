"""The house rules: who may import whom, how many floors there are, what is private and public, what is shipped."""

from __future__ import annotations

import ast
import inspect
import re
import sys
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from distlock_web import Lease
from distlock_web.core.config import STORES, StoreConfig
from tests.support import source
from tests.support.source import FILES, PACKAGE, PROJECT, below, imported_names, imports, shown

#: Which parts of ours each part may use beside itself, and which modules of others beside the standard library.
PARTS: dict[str, tuple[set[str], set[str]]] = {
    "core": (set(), set()),
    "kit": ({"core"}, set()),
    "locks": ({"core"}, set()),
    "ops": ({"core", "locks"}, set()),
    "web": ({"core", "locks", "ops"}, set()),
    "cli": ({"core", "locks", "ops", "__init__"}, set()),
    "__main__": ({"cli"}, set()),
    "apps": ({"django"}, set()),
    "django": ({"core", "locks", "ops", "web", "cli"}, {"django", "asgiref", "rest_framework"}),
    "flask": (
        {"core", "locks", "ops", "web", "cli", "sqlalchemy"},
        {"flask", "blinker", "werkzeug", "click", "jinja2", "markupsafe", "sqlalchemy", "babel", "flask_babel"},
    ),
    "starlette": ({"core", "locks", "web"}, {"starlette", "anyio"}),
    "sqlalchemy": ({"core", "locks"}, {"sqlalchemy"}),
    "prometheus": ({"core", "locks"}, {"prometheus_client"}),
    "opentelemetry": ({"core", "locks"}, {"opentelemetry"}),
    "celery": ({"core", "locks"}, {"celery"}),
    "testing": ({"core", "locks", "__init__"}, {"pytest", "django", "flask", "sqlalchemy"}),
}
#: Redlock is a quorum of Redis: it runs over their ports, and has no client of its own.
ON_TOP: dict[str, set[str]] = {"redlock": {"backends.redis"}}

#: What users may import; everything else may change without a word.
PUBLIC = (
    "distlock_web",
    "distlock_web.celery",
    "distlock_web.django",
    "distlock_web.django.admin",
    "distlock_web.django.fencing",
    "distlock_web.django.middleware",
    "distlock_web.django.responses",
    "distlock_web.django.rest",
    "distlock_web.django.signals",
    "distlock_web.django.sql",
    "distlock_web.django.views",
    "distlock_web.flask",
    "distlock_web.flask.responses",
    "distlock_web.flask.signals",
    "distlock_web.opentelemetry",
    "distlock_web.prometheus",
    "distlock_web.sqlalchemy",
    "distlock_web.starlette",
    "distlock_web.starlette.responses",
)

#: Classes of one name in two files: the same thing, once for each framework. Nothing may be added.
NAMED_TWICE = {"Answered", "DistLock", "RequestIDMiddleware", "_LockSignal"}

#: How many floors a part may have, where a module stands above all of its part that it imports.
FLOORS = {"locks": 9}


#: Where the names of a feature may stand: its room, and who asks it or carries its values. May only shrink. A room that
#: is a folder counts once. Not counted: the stores and what they see of it (the seam, the kit), and tests' tools.
FEATURES: dict[str, tuple[str, str]] = {
    "re-entry": (
        r"reentered|enter_again|turns|Turn|gates|ReentryGate|gate_of|begin_block|nested",
        "locks/reentry locks/engine locks/scope locks/hold locks/lease locks/handover celery",
    ),
    "hand-over": (
        r"adetach|aattach|Ticket|ticket|transit|take_on|end_transit|handover",
        "locks/handover locks/engine locks/lease locks/attach __init__ celery",
    ),
    "sharing": (
        r"shared|SHARED|limited|at_once|sharing",
        "locks/options locks/reentry web/error_responses ops/held_locks web/lock_presenter cli/held",
    ),
    "commit": (
        r"transaction_begun|before_judging|before_commit|rolled_back|record_within|store_in|CallersTransaction",
        "locks/commit django/transactions sqlalchemy/transactions",
    ),
    "another's transaction": (
        r"open_transaction|warn_once",
        "locks/open_transaction locks/engine locks/ending locks/once locks/hooks "
        "django/integration django/transactions flask/transactions",
    ),
    "hold_at_least": (
        r"hold_at_least|keep_for|keep_until",
        "locks/kept locks/options locks/scope locks/hold locks/ending locks/handover django/locked_views",
    ),
    "max_waiters": (
        r"max_waiters",
        "locks/options locks/scope locks/engine locks/reentry locks/refused django/save_once",
    ),
}
NOT_COUNTED = ("backends/", "kit/", "testing/", "core/backend.py", "core/runtime.py")


def beyond(paths: Iterable[Path], ours: set[str], others: set[str]) -> list[str]:
    """What these files import that is neither theirs to use nor in the standard library."""
    allowed = others | set(sys.stdlib_module_names) | {"annotationlib"}  # since Python 3.14
    return [
        f"{shown(path)} imports {module}"
        for path in paths
        for module in imports(path)
        if (part(module) not in ours if module.partition(".")[0] == "distlock_web" else root(module) not in allowed)
    ]


def root(module: str) -> str:
    return module.partition(".")[0]


def part(module: str) -> str:
    """``core`` of ``distlock_web.core.keys``; ``backends.redis``; ``__init__`` of ``distlock_web`` itself."""
    _, *parts = module.split(".")
    return ".".join(parts[: 2 if parts[:1] == ["backends"] else 1]) or "__init__"


# Who may import whom ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PARTS)
def test_each_part_imports_only_what_is_below_it(name: str) -> None:
    ours, others = PARTS[name]
    assert beyond(below(name), {name, *ours}, others) == []


def drivers(backend: str) -> set[str]:
    """The modules that its extras bring: that with its name, and one for each kind of its servers."""
    brought = tomllib.loads((PROJECT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    schemes = STORES[backend].schemes
    extras = {backend, *(StoreConfig("", backend, f"{scheme}://").extra for scheme in schemes)}
    needed = " ".join(one for extra in sorted(extras) for one in brought.get(extra, ()))
    return set(re.findall(r"(?:^| )([\w-]+)", needed)) - {"distlock_web"}


def test_a_backend_imports_core_the_kit_and_its_driver_and_no_other_backend() -> None:
    by_backend = defaultdict(list)
    for path in below("backends"):
        by_backend[path.relative_to(PACKAGE / "backends").parts[0].removesuffix(".py")].append(path)
    assert beyond(by_backend.pop("__init__"), set(), set()) == []
    for name, paths in by_backend.items():
        ours = {"core", "kit", f"backends.{name}"} | ON_TOP.get(name, set())
        assert beyond(paths, ours, set() if name in ON_TOP else drivers(name)) == []


def test_of_the_tools_for_tests_only_race_knows_frameworks_and_imports_none_that_is_not_used() -> None:
    frameworks, knows = {"django", "flask", "sqlalchemy"}, set()
    for path in below("testing"):
        if frameworks & {root(module) for module in imports(path)}:
            knows.add(path.relative_to(PACKAGE / "testing").parts[0])
            top = [node for node in source.tree(path).body if isinstance(node, ast.Import | ast.ImportFrom)]
            named = {alias.name for node in top for alias in node.names if isinstance(node, ast.Import)}
            named |= {node.module or "" for node in top if isinstance(node, ast.ImportFrom) and not node.level}
            assert frameworks.isdisjoint(map(root, named)), path
    assert knows == {"race"}


def test_every_part_has_a_rule() -> None:
    parts = {path.relative_to(PACKAGE).parts[0].removesuffix(".py") for path in FILES}
    assert parts - {"__init__", "backends"} <= PARTS.keys()


def test_nobody_imports_a_backend() -> None:
    """They are loaded by name, so that a driver that is not installed is missed by nobody who does not use it."""
    others = [path for path in FILES if path not in below("backends")]
    found = [(shown(path), module) for path in others for module in imports(path)]
    assert [pair for pair in found if pair[1].startswith("distlock_web.backends")] == []


def test_nobody_draws_from_the_random_numbers_of_the_program() -> None:
    """A thread of ours changed what a user's seed gives, and which examples Hypothesis makes."""
    own, drawn = {"Random", "SystemRandom"}, set()
    for path in FILES:
        drawn |= {(shown(path), name) for module, name in imported_names(path) if module == "random" and name}
        if ("random", "") in imported_names(path):
            attributes = [node for node in ast.walk(source.tree(path)) if isinstance(node, ast.Attribute)]
            drawn |= {(shown(path), each.attr) for each in attributes if ast.unparse(each.value) == "random"}
    assert {(place, name) for place, name in drawn if name not in own} == set()
    assert ("core/runtime.py", "SystemRandom") in drawn, "they are seen"


def test_threads_of_ours_start_in_one_place() -> None:
    """Where it is said that uWSGI lets none run, and what is to be done at the end of the program is known."""
    starting = [shown(path) for path in FILES if "threading.Thread(" in path.read_text()]
    assert [path for path in starting if not path.startswith("testing/")] == ["core/worker.py"]


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Imports for the type checker and imports inside functions count: a circle of them is a circle for the reader."""
    assert source.circle(source.graph()) == []


@pytest.mark.parametrize("name", FLOORS)
def test_a_part_has_few_floors(name: str) -> None:
    """So many modules one has to have understood, at most, before the uppermost one."""
    mine = {source.module_name(path) for path in below(name)}
    edges = {module: used & mine for module, used in source.graph().items() if module in mine}

    def floor(module: str) -> int:
        return 1 + max(map(floor, edges[module]), default=0)

    floors = {module: floor(module) for module in mine if not module.endswith(".__init__")}
    assert max(floors.values()) <= FLOORS[name], sorted(floors.items(), key=lambda each: each[1])


@pytest.mark.parametrize("feature", FEATURES)
def test_a_feature_is_a_room(feature: str) -> None:
    """Whoever reads one of these files, and not for this feature, reads past it: it is in as few as it can."""
    names, places = FEATURES[feature]
    files = set(places.split())
    counted = [path for path in FILES if not shown(path).startswith(NOT_COUNTED)]
    named = [shown(path).removesuffix(".py") for path in counted if has_name(path, names)]
    found = {"locks/reentry" if file.startswith("locks/reentry/") else file for file in named}
    assert found <= files, f"{feature} is in more files now: {sorted(found - files)}"
    assert files <= found, f"take it out of the list: {sorted(files - found)}"


def has_name(path: Path, pattern: str) -> bool:
    """Whether the code has such a name, in an f-string, too: other texts and comments do not count."""
    fields = ("id", "attr", "arg", "name", "asname")
    names = {getattr(node, field, None) for node in ast.walk(source.tree(path)) for field in fields}
    return any(re.fullmatch(pattern, name) for name in names if isinstance(name, str))


@pytest.mark.parametrize("name", ["core", "kit", "locks", "ops", "web", "cli"])
def test_what_a_folder_says_of_its_modules_has_each_of_them(name: str) -> None:
    """At the beginning of a line, or behind a semicolon with a colon: and none that is not there."""
    folder = PACKAGE / name
    order = ast.get_docstring(source.tree(folder / "__init__.py"), clean=False) or ""
    named = re.findall(r"^ {4}([\w.]+) {2,}|; (\w+): ", order, re.M)
    found = {".".join(path.relative_to(folder).with_suffix("").parts) for path in folder.rglob("*.py")}
    there = {module.removesuffix(".__init__") for module in found - {"__init__"}}
    assert sorted(one or other for one, other in named) == sorted(there)


def test_a_circle_would_be_found() -> None:
    edges = {"a": ["b"], "b": ["c", "d"], "c": ["a"], "d": [], "e": []}
    assert sorted({*source.circle(edges)}) == ["a", "b", "c"]


def test_a_name_of_a_class_has_one_meaning() -> None:
    """Who looks a name up finds one class. ``Meta`` and ``Migration`` are Django's words."""
    found = Counter(
        node.name for path in FILES for node in ast.walk(source.tree(path)) if isinstance(node, ast.ClassDef)
    )
    assert {name for name, times in found.items() if times > 1} - {"Meta", "Migration"} == NAMED_TWICE


def test_who_is_asked_is_registered_in_one_object() -> None:
    """``core/integrations.installed``. A list in a module of its own is one more that a test has to know, and empty."""
    found = {
        (shown(path), ast.unparse(node.target))
        for path in FILES
        for node in source.tree(path).body
        if isinstance(node, ast.AnnAssign)
        and isinstance(node.value, ast.List)
        and "Callable" in ast.unparse(node.annotation)
    }
    assert found == {("core/process.py", "_on_copy")}  # what a fork is told to: nobody is asked


def test_no_part_imports_the_private_names_of_another() -> None:
    assert [(shown(path), name) for path in FILES for name in source.private_imports(path)] == []


def test_the_engine_knows_neither_threads_nor_time() -> None:
    assert not {"threading", "time"} & set(imports(PACKAGE / "locks" / "engine.py"))


# What is public -----------------------------------------------------------------------------------------------------


def is_public(module: str) -> bool:
    return module in PUBLIC or module == "distlock_web.testing" or module.startswith("distlock_web.testing.")


def modules_named(text: str) -> Iterator[str]:
    """The modules of ours that a Python source imports, or names in a string as a setting does."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if root(alias.name) == "distlock_web")
        elif isinstance(node, ast.ImportFrom) and root(node.module or "") == "distlock_web" and not node.level:
            for alias in node.names:
                module = f"{node.module}.{alias.name}"
                yield module if module in source.modules() else str(node.module)
        elif isinstance(node, ast.Constant) and re.fullmatch(r"distlock_web(\.\w+)+", str(node.value)):
            module = str(node.value)
            while module not in source.modules():
                module = module.rpartition(".")[0]
            yield module


def python_of_users() -> Iterator[tuple[str, str]]:
    """Everything that shows how the package is used: the example, the benchmarks, and the blocks of the documents."""
    for folder in ("example_project", "benchmarks"):
        for path in sorted((PROJECT / folder).rglob("*.py")):
            if path.parent.name != "inside":  # of the benchmarks: it takes our own way apart
                yield path.name, path.read_text("utf-8")
    for document in [PROJECT / "README.md", *sorted((PROJECT / "docs").glob("*.md"))]:
        if document.name in ("architecture.md", "backends.md", "integrations.md"):
            continue  # for those who write a part of the package
        blocks = re.findall(r"^```python\n(.*?)^```", document.read_text("utf-8"), re.M | re.S)
        yield from ((document.name, block) for block in blocks)


def test_example_benchmarks_and_documents_use_public_modules_only() -> None:
    found = [(where, module) for where, text in python_of_users() for module in modules_named(text)]
    assert len(found) > 20
    assert [pair for pair in found if not is_public(pair[1])] == []


def test_what_is_public_is_written_down() -> None:
    """For users as the list above has it; and what the authors of stores and integrations build on."""
    text = (PROJECT / "docs" / "architecture.md").read_text("utf-8")
    table = text.partition("## What is public\n")[2].partition("\n## ")[0]
    *users, authors = [line for line in table.splitlines() if line.startswith("| ")][1:]
    named = re.findall(r"`([\w.]+)`", " ".join(users))
    assert sorted(named) == sorted([*PUBLIC, "distlock_web.testing"])
    assert set(named) | set(re.findall(r"`([\w.]+)`", authors)) <= source.modules()


def test_a_lease_shows_what_a_user_needs_each_documented() -> None:
    names = [name for name in dir(Lease) if not name.startswith("_")]
    assert len(names) <= 20, names
    undocumented = [name for name in names if not inspect.getdoc(inspect.getattr_static(Lease, name))]
    slots = {name for name in undocumented if inspect.ismemberdescriptor(inspect.getattr_static(Lease, name))}
    assert set(undocumented) - (slots & documented_attributes(Lease)) == set()


def documented_attributes(of: type) -> set[str]:
    """Attributes with a ``#:`` comment: a slot has no docstring."""
    text = inspect.getsource(of)
    return set(re.findall(r"^ +(?:self\.)?(\w+)\b[^\n#]*#:", text, re.M)) | set(
        re.findall(r"^ +#:[^\n]*\n +(?:self\.)?(\w+)\b", text, re.M)
    )


def test_the_readme_can_be_read_in_one_sitting() -> None:
    """Counted in words: lines would only become longer."""
    assert len((PROJECT / "README.md").read_text("utf-8").split()) < 1_900


# The tests ----------------------------------------------------------------------------------------------------------


def test_what_make_test_runs_beside_the_quick_tests_is_there() -> None:
    """A test of that list that was renamed would be missed by nobody."""
    tree = ast.parse((PROJECT / "tests" / "conftest.py").read_text("utf-8"))
    (listed,) = [
        node.value for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "FIRST"
    ]
    for file, name in ast.literal_eval(listed).items():
        text = (PROJECT / "tests" / file).read_text("utf-8")
        assert re.search(rf"^(class|def) {name.partition('[')[0]}\b", text, re.M), (file, name)


def test_ci_runs_each_python_and_each_django_that_are_named() -> None:
    """pip alone takes the newest Django that the test group's packages agree on, which is not the newest."""
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text("utf-8"))["project"]
    classifiers = "\n".join(project["classifiers"])
    script = (PROJECT / ".ci" / "run").read_text("utf-8")
    run = dict(re.findall(r"\[(3\.\d+)\]=(\d+\.\d+)", script))
    assert set(run) == set(re.findall(r"Python :: (3\.\d+)", classifiers))
    assert set(run.values()) == set(re.findall(r"Django :: (\d+\.\d+)", classifiers))
    assert set(re.findall(r"(?:ran|wheel) \S+ (3\.\d+)$", script, re.M)) == set(run)


def test_what_tests_share_is_in_support() -> None:
    """A test module or a conftest that is imported exists twice: under pytest's name, and under its own."""
    found = [
        (path.relative_to(PROJECT).as_posix(), module)
        for path in sorted((PROJECT / "tests").rglob("*.py"))
        for module in _imports_of_a_test(path)
        if root(module) == "tests" and module != "tests.support" and not module.startswith("tests.support.")
    ]
    assert found == []


def _imports_of_a_test(path: Path) -> Iterator[str]:
    for node in ast.walk(source.tree(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            folder = path.relative_to(PROJECT).parts[: -node.level] if node.level else ()
            module = ".".join([*folder, *([node.module] if node.module else [])])
            yield from [f"{module}.{alias.name}" for alias in node.names] if module == "tests" else [module]


# The wheel ----------------------------------------------------------------------------------------------------------


def test_the_description_on_a_package_index_leads_back_here() -> None:
    """There a relative link leads nowhere, and a relative picture is none."""
    settings = tomllib.loads((PROJECT / "pyproject.toml").read_text("utf-8"))
    hook = settings["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]
    [fragment] = hook["fragments"]
    text = (PROJECT / fragment["path"]).read_text("utf-8")
    for substitution in hook["substitutions"]:
        text = re.sub(substitution["pattern"], substitution["replacement"], text)
    targets = re.findall(r"""(?:\]\(|\bsrc(?:set)?=")([^)"]*)""", text)
    assert len(targets) > 20
    assert [target for target in targets if not target.startswith("https://")] == []


@pytest.mark.parametrize("script", sorted(PACKAGE.rglob("*.lua")), ids=lambda path: path.name)
def test_a_script_stands_on_one_screen(script: Path) -> None:
    """What is longer has two subjects: the second one gets a file, which the first includes."""
    assert len(script.read_text("utf-8").splitlines()) <= 120


def test_every_script_is_where_the_package_is() -> None:
    """A wheel without its scripts installs well, and fails at the first lock."""
    scripts = {path.name for path in PACKAGE.rglob("*.lua")}
    assert {"acquire.lua", "release.lua", "extend.lua", "cancel.lua"} <= scripts
    assert (PACKAGE / "py.typed").exists()
