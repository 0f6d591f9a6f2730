"""Selling, without and with the lock; and below that what the shop page needs."""

from __future__ import annotations

import time

from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, render
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST, require_safe

from distlock_web import current_request_id, distributed_lockable, lock

from ..environment import PAYMENT_SECONDS
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
def page(request: HttpRequest) -> HttpResponse:
    return render(request, "shop/page.html", {"stocktaking": STOCKTAKING_SECONDS})


@require_POST
def stocktaking(request: HttpRequest) -> HttpResponse:
    """Hold a lock for a while: long enough to look at it on the admin page, and to release it there by force."""
    with lock("stocktaking", expire=3, renew=True, on_lost="warn") as lease:
        lost = lease.lost.wait(timeout=STOCKTAKING_SECONDS)
    return HttpResponse(f"The lock was lost: {lease.reason}." if lost else "Held, and given back.")
