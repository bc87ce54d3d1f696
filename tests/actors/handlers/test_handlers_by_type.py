"""Handlers are added, removed and retired."""

from __future__ import annotations

import pytest

from plugind.actors.handlers.by_type import Handlers
from plugind.actors.handlers.calls import CallConfig
from plugind.actors.health.inboxes import Inboxes
from plugind.protocol.logs.lines import SILENT
from plugind.testing import FakeHandler


def made() -> Handlers:
    return Handlers(CallConfig(1.0), Inboxes(10.0, SILENT))


def one() -> Handlers:
    handlers = made()
    handlers.add("T", FakeHandler())
    return handlers


async def test_a_handler_that_was_replaced_while_it_was_removed_retires_by_itself() -> None:
    """The removal of the first handler returns when that handler has retired; the second one is not affected."""
    handlers = one()
    (first,) = handlers.added
    first_retired = handlers.remove("T")
    second = handlers.add("T", FakeHandler())
    handlers.retire(first.handler)
    assert first_retired.is_set()
    assert (handlers.added, handlers.count) == ((second,), 1)
    assert not handlers.remove("T").is_set()


async def test_handlers_that_were_removed_before_a_reconciler_crashed_retire_without_the_next_one() -> None:
    """Fault 85: until then health shows them, and each of them retires once."""
    handlers = one()
    kept = handlers.add("U", FakeHandler())
    retired = handlers.remove("T")
    (retire,) = handlers.retirements()
    assert (handlers.added, handlers.count, retired.is_set()) == ((kept,), 2, False)
    (retire_again,) = handlers.retirements()
    retire()
    retire_again()
    assert (handlers.added, handlers.count, retired.is_set()) == ((kept,), 1, True)


def test_removing_a_missing_handler_is_an_error() -> None:
    with pytest.raises(KeyError, match="T"):
        made().remove("T")
