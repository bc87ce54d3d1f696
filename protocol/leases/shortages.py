"""Why a request cannot have its devices now: the texts of the kubelet, and what is wrong with single devices.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from .line import Reserved, available, fits
from .stock import Resource, Stock
from .values import Lease, Request, Wanted


def shortage(stock: Stock, reserved: Reserved, request: Request) -> str:
    """Return why the request, which does not fit, cannot have what it wants."""
    return next(_texts(stock, reserved, request))


def _texts(stock: Stock, reserved: Reserved, request: Request) -> Iterator[str]:
    for wanted in request.wanted:
        one = Request((wanted,), request.ids, request.include, request.pool, ignore_missing=request.ignore_missing)
        if not fits(stock, reserved, one):
            yield _text(stock, reserved, request, wanted)


def _text(stock: Stock, reserved: Reserved, request: Request, wanted: Wanted) -> str:
    name = wanted.resource
    resource = stock.find(name)
    if resource is None:
        return f"cannot allocate unregistered device {name}"
    if not resource.offered and not len(resource.offer.devices):
        return f"unknown Device Plugin {name}" + _because(resource)
    if not resource.has_healthy:
        return f"no healthy devices present; cannot allocate unhealthy devices {name}" + _because(resource)
    number = available(stock, reserved, request, wanted)
    if request.ids:
        number = min(
            number, sum(not _wrong(stock, resource, reserved, request, device_id) for device_id in request.ids)
        )
    text = f"requested number of devices unavailable for {name}. Requested: {wanted.count}, Available: {number}"
    wrong = [
        f"{device_id} {why}"
        for device_id in request.ids or request.include
        if (why := _wrong(stock, resource, reserved, request, device_id))
    ]
    return f"{text} ({', '.join(wrong)})" if wrong else text


def _because(resource: Resource) -> str:
    return f" ({resource.offer.reason})" if resource.offer.reason else ""


def _wrong(stock: Stock, resource: Resource, reserved: Reserved, request: Request, device_id: str) -> str | None:
    """Return why a device that the request names cannot be taken."""
    name = resource.offer.resource
    device = resource.offer.devices.devices.get(device_id)
    if device is None:
        return "is not listed"
    if (pool := stock.pools.of(name, device_id)) != request.pool:
        return "is in no pool" if pool is None else f"is in the pool {pool}"
    if device_id in resource.taken:
        return f"is leased by {resource.taken[device_id]}"
    if not device.healthy:
        return "is unhealthy"
    return "is waited for" if reserved.has(name, device_id) else None


def unhealthy_since(stock: Stock, lease: Lease) -> str | None:
    """Return the text for a lease that has devices which are unhealthy by now; None if it has none."""
    devices: Mapping[str, tuple[str, ...]] = lease.devices
    for name, ids in devices.items():
        resource = stock.find(name)
        listed = {} if resource is None or not resource.offered else resource.offer.devices.devices
        if any(device_id in listed and not listed[device_id].healthy for device_id in ids):
            return f"previously allocated devices are no longer healthy; cannot allocate unhealthy devices {name}"
    return None
