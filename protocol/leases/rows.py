"""Leases as rows of the state file: a row of the table ``lease``, and the devices in ``lease_device``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import attrs

from ..values import value
from .json_values import answer_of, answer_to_json, exactly_or_none, owner_of, request_of, texts, wrong_form_is
from .values import (
    ConnectionOwner,
    ContainerOwner,
    Lease,
    LeaseState,
    NoOwner,
    Owner,
    ProcessOwner,
    TimeOwner,
    process_of,
)

#: What is written; the others are known to the memory alone.
STATES = (LeaseState.PENDING, LeaseState.HELD, LeaseState.UNCERTAIN)


class RowError(Exception):
    """A row cannot be understood; the text names the lease and says why."""


@value
class LeaseRow:
    """A row of the table ``lease``: its columns, in their order."""

    id: str
    cdi_name: str | None
    uid: int
    pool: str | None
    #: JSON.
    label: str
    #: JSON.
    request: str
    state: str
    owner_kind: str
    pid: int | None
    start_ticks: int | None
    #: The boot in which the lease was written.
    boot_id: str
    token_hash: str | None
    expires_boottime_ns: int | None
    created_unix: float
    #: JSON: what the plugins have said, and the warnings; None if there is neither.
    answer: str | None
    reason: str | None


#: The columns of the table ``lease``.
COLUMNS: tuple[str, ...] = tuple(field.name for field in attrs.fields(LeaseRow))

#: The rows of ``lease_device`` of a lease: resource and device.
DeviceRows = tuple[tuple[str, str], ...]


# --- to rows ----------------------------------------------------------------------------------------------------------


_KINDS: Mapping[type[Owner], str] = {
    ProcessOwner: "process",
    ContainerOwner: "container",
    TimeOwner: "time",
    ConnectionOwner: "connection",
    NoOwner: "none",
}


def kind_of(owner: Owner) -> str:
    """Return the word for the kind of an owner."""
    return _KINDS[type(owner)]


def row_of(lease: Lease, boot_id: str) -> LeaseRow:
    """Return the row of a lease that is written in the boot ``boot_id``."""
    if lease.state not in STATES:
        raise ValueError(f"a lease that is {lease.state} is not written")
    owner, process = lease.owner, process_of(lease.owner)
    return LeaseRow(
        id=lease.id,
        cdi_name=lease.cdi_name,
        uid=lease.uid,
        pool=lease.request.pool,
        label=_json(dict(lease.request.labels)),
        request=_json(_json_of_request(lease)),
        state=lease.state.value,
        owner_kind=kind_of(owner),
        pid=process.pid if process else None,
        start_ticks=process.start_ticks if process else None,
        boot_id=process.boot_id if process else boot_id,
        token_hash=owner.token_hash if isinstance(owner, ConnectionOwner) else None,
        expires_boottime_ns=owner.expires if isinstance(owner, TimeOwner) else None,
        created_unix=lease.created,
        answer=_json_of_answer(lease),
        reason=lease.reason,
    )


def device_rows_of(lease: Lease) -> DeviceRows:
    """Return the rows of the devices of a lease."""
    return tuple((resource, device) for resource, devices in lease.devices.items() for device in devices)


_json = json.JSONEncoder(separators=(",", ":")).encode


def _json_of_request(lease: Lease) -> dict[str, object]:
    request, owner = lease.request, lease.owner
    return {
        "resources": {wanted.resource: wanted.count for wanted in request.wanted},
        "ids": request.ids,
        "include": request.include,
        "container": request.container,
        "ignore_missing": request.ignore_missing,
        "stop_on_unhealthy": request.stop_on_unhealthy,
        "seconds": owner.seconds if isinstance(owner, TimeOwner) else None,
        "start_within": owner.start_within if isinstance(owner, ContainerOwner) else None,
        **({} if request.for_uid is None else {"for_uid": request.for_uid}),
        **({} if lease.longest_until is None else {"longest_until": lease.longest_until}),
    }


def _json_of_answer(lease: Lease) -> str | None:
    if lease.answer is None and not lease.warnings:
        return None
    answer = None if lease.answer is None else answer_to_json(lease.answer)
    return _json({"answer": answer, "warnings": lease.warnings})


# --- from rows --------------------------------------------------------------------------------------------------------


def lease_of(row: LeaseRow, devices: DeviceRows) -> Lease:
    """Return the lease of a row and of its devices.

    Raises:
      RowError: if the row cannot be understood.
    """
    with wrong_form_is(RowError, f"the row of the lease {row.id} cannot be understood"):
        return _lease_of(row, devices)


def _lease_of(row: LeaseRow, devices: DeviceRows) -> Lease:
    asked = json.loads(row.request)
    content = json.loads(row.answer) if row.answer is not None else {"answer": None, "warnings": []}
    state = LeaseState(row.state)
    if state not in STATES:
        raise ValueError(f"its state is {state}")
    return Lease(
        id=row.id,
        uid=row.uid,
        request=request_of(asked, {"pool": row.pool, "labels": json.loads(row.label)}),
        owner=_owner_of(row, asked),
        state=state,
        created=row.created_unix,
        devices=_devices_of(devices),
        answer=None if content["answer"] is None else answer_of(content["answer"]),
        cdi_name=row.cdi_name,
        reason=row.reason,
        warnings=texts(content["warnings"]),
        longest_until=exactly_or_none(int, asked.get("longest_until")),
    )


def _owner_of(row: LeaseRow, asked: Any) -> Owner:
    process = {"pid": row.pid, "start_ticks": row.start_ticks, "boot_id": row.boot_id}
    init, ends = None if row.pid is None else process, row.expires_boottime_ns
    content = {**asked, **process, "kind": row.owner_kind, "init": init, "expires_boottime_ns": ends}
    return owner_of(content, row.token_hash)


def _devices_of(devices: DeviceRows) -> dict[str, tuple[str, ...]]:
    found: dict[str, list[str]] = {}
    for resource, device in devices:
        found.setdefault(resource, []).append(device)
    return {resource: tuple(names) for resource, names in found.items()}
