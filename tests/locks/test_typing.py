"""What a type checker is told: mypy reads this file, strictly, as all tests. What runs only shows that it is true."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, assert_type

import pytest

from distlock_web import Lease, Lock, LockOptions, Lost, distributed_lockable, lock, request_scope

pytestmark = pytest.mark.usefixtures("memory_store")


@distributed_lockable
def bare(order_id: int) -> str:
    return f"paid {order_id}"


@distributed_lockable("order:{order_id}", expire=5)
def with_key(order_id: int) -> str:
    return f"paid {order_id}"


@distributed_lockable(["a:{order_id}", "b:{order_id}"], on_busy="raise")
async def with_keys(order_id: int) -> str:
    return f"paid {order_id}"


def test_a_function_keeps_its_type() -> None:
    assert assert_type(bare(1), str) == assert_type(with_key(order_id=1), str) == "paid 1"
    assert assert_type(asyncio.run(assert_type(with_keys(1), Coroutine[Any, Any, str])), str) == "paid 1"


def test_a_job_keeps_its_type() -> None:
    @request_scope("job-17")
    def plain(number: int) -> str:
        return f"{number}"

    @request_scope()
    async def coroutine(number: int) -> str:
        return f"{number}"

    assert assert_type(plain(1), str) == assert_type(asyncio.run(coroutine(1)), str) == "1"
    with request_scope("job-17") as request_id:
        assert assert_type(request_id, str) == "job-17"


def test_what_one_has_in_hand_has_a_name() -> None:
    options: LockOptions = {"expire": 10, "store": None}

    def wait_for_loss(taken: Lock) -> bool:
        lease: Lease | None = taken.try_acquire()
        assert lease is not None
        with lease:
            lost: Lost = lease.lost
            return lost.is_set()

    assert not wait_for_loss(assert_type(lock("a", **options), Lock))


def test_a_wrong_call_is_a_wrong_type() -> None:
    with pytest.raises(TypeError):
        bare("1", "2")  # type: ignore[call-arg, arg-type]
