"""Which tests have to find the mutants of which file: quick ones, and most in a world whose time takes none."""

from __future__ import annotations

LOCKS = [
    "tests/locks",
    *(f"tests/observability/test_{what}.py" for what in ("events", "listeners", "logs", "release_of_several")),
]

#: When leases are renewed and how a loss is told. No leader, no nested block.
RENEWAL = [
    *(f"tests/locks/test_{what}.py" for what in ("watchdog", "renewal", "partial_outage", "lost", "engine")),
    "tests/observability/test_events.py",
]

#: What is done in a database; here that is SQLite.
COMMIT = "tests/commit/test_exactly_once.py"

#: And who opens that transaction, by which framework.
COMMITS = [COMMIT, "tests/commit/test_order.py", "tests/commit/test_sqlalchemy.py"]

#: What a key is made of, in a framework too, and what a function is called there.
KEYS = [
    *(f"tests/core/test_{what}.py" for what in ("keys", "forged_keys", "one_row_one_key")),
    *(f"tests/locks/test_{what}.py" for what in ("own_names", "decorator", "refused_early", "once")),
    *(f"tests/django/test_{what}.py" for what in ("keys", "names", "url_keys")),
    "tests/flask/test_names.py",
    *(f"tests/web/test_{what}.py" for what in ("methods", "once", "rest")),
]

#: What becomes of the call of a locked function; ``once`` has some of its stages.
CALLS = [
    *(f"tests/locks/test_{what}.py" for what in ("call", "decorator", "hold_at_least", "refused_early", "once")),
    *(f"tests/web/test_{what}.py" for what in ("methods", "success", "once")),
]

#: By a name for the command line: the file, below the package, and the tests of its subject.
FILES: dict[str, tuple[str, list[str]]] = {
    "engine": ("locks/engine.py", [*LOCKS, "tests/web/test_busy_holder.py"]),
    "hold": ("locks/hold.py", LOCKS),
    "chain": ("locks/reentry/chain.py", LOCKS),
    "gate": ("locks/reentry/gate.py", LOCKS),
    "entering": ("locks/reentry/entering.py", LOCKS),
    "sharing": ("locks/reentry/sharing.py", LOCKS),
    "refused": ("locks/refused.py", [*LOCKS, "tests/web/test_busy_holder.py"]),
    "scope": ("locks/scope.py", [*LOCKS, COMMIT]),
    "cancelling": ("locks/cancelling.py", LOCKS),
    "ending": ("locks/ending.py", [*LOCKS, COMMIT, "tests/web/test_retry_after.py"]),
    "commit": ("locks/commit.py", ["tests/locks/test_commit.py", *COMMITS]),
    "open_transaction": (
        "locks/open_transaction.py",
        [f"tests/commit/test_{what}.py" for what in ("warnings", "autocommit_off", "two_decorators")],
    ),
    "completion": ("locks/completion.py", LOCKS),
    "handover": (
        "locks/handover.py",
        [
            *(f"tests/locks/test_{what}.py" for what in ("transfer", "engine", "interrupted")),
            "tests/observability/test_events.py",
        ],
    ),
    "call": ("locks/call.py", [*CALLS, COMMIT, "tests/commit/test_order.py"]),
    "once": ("locks/once.py", ["tests/locks/test_once.py", "tests/web/test_once.py", COMMIT]),
    "key_templates": ("locks/key_templates.py", KEYS),
    "function_names": ("locks/function_names.py", KEYS),
    "outage": ("kit/outage.py", ["tests/kit/test_outage.py"]),
    "watchdog": ("locks/watchdog.py", RENEWAL),
    "memory": ("backends/memory.py", [f"tests/backends/test_memory{what}.py" for what in ("", "_queue", "_moments")]),
    "web-once": (
        "web/kept_answers.py",
        [f"tests/web/test_{what}.py" for what in ("kept_answers", "once", "same_answer")],
    ),
}

#: Words in the names of tests that are left out: what needs a server, and what sleeps for long.
NOT_HERE = [
    "redis",
    "test_taken_inside_a_transaction",  # the line that calls ours is mutmut's, where it has changed what is called
    "test_given_back_by_its_block_inside",
    "test_main_path",  # counts calls
    "test_typing",  # runs mypy
    "test_a_lock_is_kept_while_its_block_waits_for_its_turn_inside_another",
    "test_the_end_of_a_loop_leaves_no_lock_held",
    "test_a_lock_is_not_busy_that_became_free_while_its_waiter_slept",
    "test_what_is_refused_keeps_nothing_behind_it",
    "test_no_answer_to_the_watchdog",
    "test_wherever_the_process_dies",
]

#: Lines that are not changed: what people read, which has tests of its own, and what is logged.
TEXTS = [
    r'^\s*(message or )?f?"',  # a line of a text
    r"^\s*logger\.",
]
