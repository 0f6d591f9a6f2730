"""Selling, without and with the lock; and below that what the shop page needs."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from io import StringIO

from django.core.management import CommandError, call_command
from django.db import transaction
from django.http import HttpRequest, HttpResponse, JsonResponse, StreamingHttpResponse
from django.shortcuts import get_object_or_404, render
from django.views.decorators.cache import never_cache
from django.views.decorators.csrf import csrf_exempt, ensure_csrf_cookie
from django.views.decorators.http import require_POST, require_safe

from distlock_web import current_request_id, distributed_lockable, lock

from ..drill import BUYERS, DELIVERED, SOLD, rush
from ..environment import PAYMENT_SECONDS, SHOPS
from .models import Sale, Stock

STOCKTAKING_SECONDS = 8

# Buyers are programs without a session: a forged request could do nothing that its sender could not do himself.


@csrf_exempt
@require_POST
def buy_without_lock(request: HttpRequest, item: str) -> HttpResponse:
    return sell(item)


@csrf_exempt
@require_POST
@distributed_lockable(key="stock:{item}", expire=10, wait=10)
def buy(request: HttpRequest, item: str) -> HttpResponse:
    return sell(item)


def sell(item: str) -> HttpResponse:
    """Read the stock, take the money, write the stock. Two buyers who come at once read the same stock."""
    stock = get_object_or_404(Stock, item=item)
    if stock.remaining <= 0:
        return HttpResponse("Sold out", status=410)
    time.sleep(PAYMENT_SECONDS)
    stock.remaining -= 1
    with transaction.atomic():
        stock.save()
        Sale.objects.create(item=stock, shop="Django", request_id=current_request_id())
    return HttpResponse(f"Sold. Your receipt: {current_request_id()}", status=201)


# The shop page ------------------------------------------------------------------------------------------------------


@require_safe
@ensure_csrf_cookie
def page(request: HttpRequest) -> HttpResponse:
    numbers = {"buyers": BUYERS, "delivered": DELIVERED, "stocktaking": STOCKTAKING_SECONDS}
    return render(request, "shop/page.html", numbers)


@require_POST
def drill(request: HttpRequest, locked: bool) -> StreamingHttpResponse:
    """A drill, told while it runs: a line of JSON for every buyer's answer, and one at the end."""
    lines = (json.dumps(line) + "\n" for line in _watch(locked))
    return StreamingHttpResponse(lines, content_type="application/x-ndjson", headers={"Cache-Control": "no-store"})


def _watch(locked: bool) -> Iterator[dict[str, object]]:
    stock, answers = Stock.deliver(DELIVERED), []
    for answer in rush(SHOPS, stock.item, locked=locked):
        answers.append(answer)
        sold = sum(answer.status == SOLD for answer in answers)
        yield {"answers": len(answers), "sold": sold}
    outcome = stock.outcome(answers)
    yield {
        "outcome": {
            "sold": outcome.sold,
            "remaining": outcome.remaining,
            "oversold": outcome.oversold,
            "busy": outcome.busy,
            "failed": outcome.failed,
            "p50": outcome.percentile(50),
            "p99": outcome.percentile(99),
        }
    }


@require_POST
def stocktaking(request: HttpRequest) -> JsonResponse:
    """Hold a lock for a while: long enough to look at it on the admin page, and to release it there by force."""
    with lock("stocktaking", expire=3, renew=True, on_lost="warn") as lease:
        lost = lease.lost.wait(timeout=STOCKTAKING_SECONDS)
    return JsonResponse({"finished": not lost, "reason": lease.reason})


@require_safe
@never_cache
def locks(request: HttpRequest) -> JsonResponse:
    """The locks that are held at this moment, as ``manage.py distlock list --json`` shows them."""
    answer, errors = StringIO(), []
    try:
        call_command("distlock", "list", "--json", stdout=answer)
    except CommandError as error:  # a store does not answer; what the others hold has been written
        errors.append(str(error))
    return JsonResponse({"locks": json.loads(answer.getvalue() or "[]"), "errors": errors})
