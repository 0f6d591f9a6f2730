"""A process that takes a lock, reads, and writes when it is told to: what it does in between is up to the test.

Reads commands from its input, a line each, and answers with a line each. The environment: ``HOLDER_DATABASE`` (an entry
of DATABASES, in JSON), ``DISTLOCK_URL``.
"""

from __future__ import annotations

import json
import os
import sys

import django
from django.conf import settings
from django.db import transaction

from distlock_web import Lease, LeaseLost, StaleFence, lock
from tests.support import databases  # noqa: F401 - makes PyMySQL known to Django

settings.configure(DATABASES={"default": json.loads(os.environ["HOLDER_DATABASE"])}, USE_TZ=True)
django.setup()

from tests.support.fenced_tables import Stock, Warehouse  # noqa: E402 - a module with models wants its apps ready

EXPIRE = 0.5  # seconds


def rounds(key: str, pk: int) -> None:
    Stock.objects.get(pk=pk)  # the connection is made while no lease is running
    for command in sys.stdin:
        if command == "read\n":
            lease = lock(key, expire=EXPIRE, wait=30).acquire()
            fence = lease.fence
            try:
                row = Stock.objects.fenced_get(lease, pk=pk)
            except LeaseLost:  # on a machine that has too much to do
                print(release(lease, "again"), flush=True)
            else:
                print("read", flush=True)
        else:
            print(release(lease, write(row, fence)), flush=True)


def write(row: Stock, fence: int | None) -> str:
    """With the number alone: the lease knows by now that it is lost, and is not asked."""
    assert fence is not None
    row.count += 1000
    try:
        with transaction.atomic():
            Warehouse.objects.create(name="written before")
            row.fenced_save(fence)
    except StaleFence:
        return "refused"
    return "written"


def release(lease: Lease, said: str) -> str:
    try:
        lease.release()
    except LeaseLost:
        return f"{said} lost"
    return said


rounds(sys.argv[1], int(sys.argv[2]))
