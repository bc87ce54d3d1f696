"""docs/leases.md names the limits that hold, and the forms and exit codes that there are."""

from __future__ import annotations

from pathlib import Path

import pytest

from plugind.actors.devices import calls as device_calls
from plugind.actors.leases import cdi_files, cdi_writer, saving
from plugind.protocol.leases import answers, asked_json, book, grace
from plugind.protocol.leases.config import LeaseLimits
from plugind.protocol.leases.forms import FORMS
from plugind.protocol.leases.limits import MAX_ID

PAGE = (Path(__file__).parents[1] / "docs" / "leases.md").read_text()
OF_USER = LeaseLimits()
LIMITS = {
    "leases of a user who is not root, with those in line": f"{OF_USER.leases:,}",
    "devices of a user who is not root, with those that are waited for": f"{OF_USER.devices:,}",
    "bytes of the labels of a user who is not root, of all its leases": f"{OF_USER.label_bytes // 1024:,} KiB",
    "leases of all users": f"{OF_USER.all_leases:,}",
    "bytes of the id of a lease": f"{MAX_ID}",
    "resources of a request, devices of one resource, labels": (
        f"{asked_json.MAX_RESOURCES}, {asked_json.MAX_COUNT:,}, {asked_json.MAX_LABELS}"
    ),
    "time for GetPreferredAllocation, Allocate, PreStartContainer": (
        f"{device_calls.PREFERENCE_TIMEOUT:g} s, {device_calls.ALLOCATE_TIMEOUT:g} s, "
        f"{device_calls.PRE_START_TIMEOUT:g} s"
    ),
    "calls that wait for one plugin": f"{device_calls.MAX_WAITING:,}",
    "nodes, mounts, variables, annotations and CDI names in an answer, of each": f"{answers.MAX_ENTRIES:,}",
    "bytes of all texts of an answer, and of its message": (
        f"{answers.MAX_BYTES // 1024} KiB, {answers.MAX_MESSAGE // 1024} KiB"
    ),
    "device nodes below a directory that an answer names": f"{cdi_files.MOST_NODES:,}",
    "entries of all such directories of a lease, time for the look at its device nodes": (
        f"{cdi_files.MOST_ENTRIES:,}, {cdi_files.LOOK:g} s"
    ),
    "looks that hang, and those of one resource: alone, and beside others": f"{cdi_files.MOST_LOOKS}, 1 and 1",
    "time for which uncertain devices are withheld, unless the plugin ends": f"{book.WITHHELD:g} s",
    "time within which a container has to start, or a connection has to be back after a restart of plugind": (
        f"{book.BIND:g} s"
    ),
    "time for which a lease outlives its container, unless a request needs its devices": f"{grace.GRACE:g} s",
    "time for a write of the state, and of a CDI file": f"{saving.DEADLINE:g} s, {cdi_writer.DEADLINE:g} s",
}


@pytest.mark.parametrize("what", LIMITS)
def test_the_page_names_each_limit(what: str) -> None:
    assert f"| {what} | {LIMITS[what]} |" in PAGE


def test_the_page_names_each_form() -> None:
    (row,) = [line for line in PAGE.splitlines() if line.startswith("| `-o FORM` |")]
    assert [form for form in (*FORMS, "json") if f"`{form}`" not in row] == []
