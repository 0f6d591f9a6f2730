"""Which tests have to find the mutants of which file: quick ones, and most in a world whose time takes none."""

from __future__ import annotations

LOCKS = [
    "tests/locks",
    *(f"tests/observability/test_{what}.py" for what in ("events", "listeners", "logs", "release_of_several")),
]

#: By a name for the command line: the file, below the package, and the tests of its subject.
FILES: dict[str, tuple[str, list[str]]] = {
    "engine": ("locks/engine.py", [*LOCKS, "tests/web/test_busy_holder.py"]),
    "hold": ("locks/hold.py", LOCKS),
    "chain": ("locks/chain.py", LOCKS),
}

#: Whose survivors nobody has gone through yet: tried only where they are named. With the share that survived, of all
#: mutants, when they were first tried.
LATER: dict[str, tuple[str, list[str]]] = {
    "scope": ("locks/scope.py", LOCKS),  # 10 %
    "ending": ("locks/ending.py", LOCKS),  # 15 %; two thirds are in what is done in a database, which no test here has
    "watchdog": ("locks/watchdog.py", LOCKS),  # 26 %
    "memory": ("backends/memory.py", ["tests/backends/test_memory.py", "tests/backends/test_memory_queue.py"]),  # 10 %
    "once": ("locks/once.py", ["tests/locks/test_once.py", "tests/web/test_once.py"]),  # 12 %
    "outage": ("core/outage.py", ["tests/core/test_outage.py"]),  # 23 %
    "web-once": ("web/once.py", ["tests/web/test_once.py", "tests/web/test_same_answer.py"]),  # not tried
    "key_templates": (
        "locks/key_templates.py",
        ["tests/core/test_keys.py", "tests/core/test_forged_keys.py", "tests/locks"],
    ),  # not tried
}

#: Words in the names of tests that are left out: what needs a server, and what sleeps for long.
NOT_HERE = [
    "redis",
    "test_main_path",  # counts calls
    "test_typing",  # runs mypy
    "test_a_block_that_has_lost_the_one_around_it_is_not_renewed",
    "test_a_lock_is_kept_while_its_block_waits_for_its_turn_inside_another",
    "test_the_end_of_a_loop_leaves_no_lock_held",
    "test_a_lock_is_not_busy_that_became_free_while_its_waiter_slept",
    "test_what_is_refused_keeps_nothing_behind_it",
    "test_no_answer_to_the_watchdog",
]

#: Lines that are not changed: what people read, which has tests of its own, and what is logged.
TEXTS = [
    r'^\s*(message or )?f?"',  # a line of a text
    r"^\s*logger\.",
]
