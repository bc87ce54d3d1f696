"""Why a request cannot have its devices now: the texts of the kubelet, and what is wrong with single devices."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Final

import attrs

from ..plugins.devices import UNHEALTHY
from ..text import cut, first_few
from .choosing import Reserved, available, fits
from .drains import drain_of
from .stock import Missing, Stock, StockedResource
from .values import Lease, Request, Wanted, identity_key

#: How many pools are named that have devices.
_MOST_POOLS: Final = 3
#: How many names of resources are compared with a misspelt one.
_MOST_COMPARED: Final = 256
#: Characters of the health that a plugin says of a device.
_MAX_REASON: Final = 200


def shortage(stock: Stock, reserved: Reserved, request: Request, uid: int) -> str:
    """Return why the request of a user, which does not fit, cannot have what it wants."""
    return next(_texts(stock, reserved, request, uid))


def _texts(stock: Stock, reserved: Reserved, request: Request, uid: int) -> Iterator[str]:
    for wanted in request.wanted:
        one = Request((wanted,), request.ids, request.include, request.pool, ignore_missing=request.ignore_missing)
        if not fits(stock, reserved, one):
            yield _text(stock, reserved, request, wanted, uid)


def _text(stock: Stock, reserved: Reserved, request: Request, wanted: Wanted, uid: int) -> str:
    name = wanted.resource
    resource = stock.find(name)
    if resource is None:
        return f"cannot allocate unregistered device {name}{_near(stock, name)}"
    if not resource.offered and not len(resource.offer.devices):
        return f"unknown Device Plugin {name}" + _because(resource)
    if resource.offered and resource.offer.reason:
        return f"{name} has no devices{_because(resource)}"
    if not resource.has_healthy:
        text = f"no healthy devices present; cannot allocate unhealthy devices {name}"
        return text + (_because(resource) or _unhealthy(stock, request, resource))
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
    if wrong:
        text += f" ({', '.join(wrong)})"
    else:
        text += _unhealthy(stock, request, resource)
    named, listed = request.ids or request.include, len(resource.offer.devices)
    if wanted.count > listed and not named and not stock.missing(name):
        text += f"; there {'is' if listed == 1 else 'are'} {listed} in all"
    if not named and (drained := stock.drains_of((name, request.pool))):
        text += f"; drained: {first_few([drain.words for drain in drained])}"
    text += _kept_back(stock, reserved, request, wanted)
    return text if named else text + _elsewhere(stock, reserved, request, wanted, uid)


def _kept_back(stock: Stock, reserved: Reserved, request: Request, wanted: Wanted) -> str:
    """Return which missing devices make others unavailable, and how to ask for these."""
    all_free = attrs.evolve(request, ignore_missing=True)
    if available(stock, reserved, all_free, wanted) == available(stock, reserved, request, wanted):
        return ""
    missing = first_few(stock.missing(wanted.resource))
    return (
        f"; leased and no longer listed: {missing}; as many others are kept back, since they may be the same devices"
        " with other ids: ask with --ignore-missing if they are not"
    )


def _near(stock: Stock, name: str) -> str:
    """Return the known resource whose name is most like this one, in both of its parts."""
    from difflib import get_close_matches

    known = {tuple(each.split("/", 1)): each for each in islice(stock.names(), _MOST_COMPARED)}
    alike = [
        {*get_close_matches(part, {each[at] for each in known if at < len(each)}, _MOST_COMPARED)}
        for at, part in enumerate(name.split("/", 1))
    ]
    both = [each for parts, each in known.items() if all(map(set.__contains__, alike, parts))]
    close = get_close_matches(name, both, 1)
    return (
        f": did you mean {close[0]}?" if close else ", which nobody has offered; 'plugind devices' lists what there is"
    )


def _unhealthy(stock: Stock, request: Request, resource: StockedResource) -> str:
    """Return which devices of the pool cannot be leased although nobody has them, and why if that is known."""
    name = resource.offer.resource
    found = [
        _with_reason(device.id, "leased under another name" if device.healthy else device.health)
        for device in resource.offer.devices.devices.values()
        if device.id not in resource.taken
        and stock.pools.pool_of(name, device.id) == request.pool
        and (not device.healthy or stock.is_leased_elsewhere(name, device))
    ]
    return f"; unhealthy: {first_few(found)}" if found else ""


def _with_reason(what: str, why: str) -> str:
    return what if why == UNHEALTHY else f"{what} ({cut(why, _MAX_REASON)})"


def _elsewhere(stock: Stock, reserved: Reserved, request: Request, wanted: Wanted, uid: int) -> str:
    """Return what the user could take from other pools. One that is closed to the user is not spoken of."""
    places = [*stock.pools.admitting(wanted.resource, uid), None]
    others = [(pool, attrs.evolve(request, pool=pool)) for pool in places if pool != request.pool]
    free = ((pool, number) for pool, asked in others if (number := available(stock, reserved, asked, wanted)))
    said = [f"{number} in {_place(pool)}" for pool, number in islice(free, _MOST_POOLS)]
    how = "ask with --pool" if request.pool is None else "ask with another --pool, or without one"
    return f"; more are free, {', '.join(said)}: {how}" if said else ""


def _place(pool: str | None) -> str:
    return "no pool" if pool is None else f"the pool {pool}"


def _because(resource: StockedResource) -> str:
    return f" ({resource.offer.reason})" if resource.offer.reason else ""


def _wrong(stock: Stock, resource: StockedResource, reserved: Reserved, request: Request, device_id: str) -> str | None:
    """Return why a device that the request names cannot be taken."""
    name = resource.offer.resource
    device = resource.offer.devices.devices.get(device_id)
    if device is None:
        return "is not listed"
    if (pool := stock.pools.pool_of(name, device_id)) != request.pool:
        return "is in no pool" if pool is None else f"is in the pool {pool}"
    if (drain := drain_of(stock.drains, name, device_id)) is not None:
        return f"is drained{drain.why}"
    if device_id in resource.taken:
        return f"is leased by {resource.taken[device_id]}"
    if not device.healthy:
        return _with_reason("is unhealthy", device.health)
    if stock.is_leased_elsewhere(name, device):
        return "is leased under another name"
    return "is waited for" if device_id in reserved.named(name) else None


def unusable(stock: Stock, name: str, ids: Iterable[str]) -> str | None:
    """Return why a plugin cannot be asked to prepare devices that were taken; None if it can."""
    if stock.is_healthy(name, ids):
        return None
    return _no_longer_healthy(name) if stock.is_offered(name) else f"unknown Device Plugin {name}"


def unhealthy_since(stock: Stock, lease: Lease) -> str | None:
    """Return the text for a lease that has devices which are unhealthy by now; None if it has none."""
    devices: Mapping[str, tuple[str, ...]] = lease.devices
    for name, ids in devices.items():
        resource = stock.find(name)
        listed = {} if resource is None or not resource.offered else resource.offer.devices.devices
        text = _no_longer_healthy(name)
        if any(device_id in listed and not listed[device_id].healthy for device_id in ids):
            return text
        if moved := _moved(stock, lease, name, ids):
            return f"{text} ({moved})"
        gone = [device_id for device_id, device in _missing(stock, name, ids) if not device.renamed]
        if gone and resource is not None and resource.offered:
            return f"{text} (no longer listed: {first_few(gone)})"
    return None


def _no_longer_healthy(name: str) -> str:
    return f"previously allocated devices are no longer healthy; cannot allocate unhealthy devices {name}"


def missing_devices(stock: Stock, lease: Lease) -> str | None:
    """Return the text for a lease of whose devices some are not listed any more, or others have their ids by now."""
    texts = list[str]()
    devices: Mapping[str, tuple[str, ...]] = lease.devices
    for name, ids in devices.items():
        if missing := dict(_missing(stock, name, ids)):
            texts.append(_missing_of(name, missing))
        if moved := _moved(stock, lease, name, ids):
            texts.append(f"unhealthy, {moved}")
    return "; ".join(texts) or None


def _moved(stock: Stock, lease: Lease, name: str, ids: Iterable[str]) -> str | None:
    """Return which static devices of a lease are other devices by now; None if none is."""
    resource, given = stock.find(name), lease.answer.identities if lease.answer is not None else {}
    if resource is None or not given:
        return None
    listed = resource.offer.devices.devices
    other = [
        device_id
        for device_id in ids
        if device_id in listed and given.get(identity_key(name, device_id), "") != listed[device_id].identity
    ]
    return f"another device of {name} has the id by now: {first_few(other)}" if other else None


def _missing(stock: Stock, name: str, ids: Iterable[str]) -> Iterator[tuple[str, Missing]]:
    missing = stock.missing(name)
    return (
        (device_id, missing[device_id]) for device_id in ids if device_id in missing and missing[device_id].is_clear
    )


def _missing_of(name: str, missing: Mapping[str, Missing]) -> str:
    renamed = any(device.renamed for device in missing.values())
    other_ids = ", and unknown ids are listed: they may have these by now" if renamed else ""
    return f"unhealthy, {name} no longer lists {first_few(missing)}{other_ids}"
