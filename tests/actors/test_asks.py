"""The asks of a registration: an answer counts for the current ask only, and what may be withdrawn is."""

from __future__ import annotations

import attrs
import pytest

from plugind.actors.asks import Asks
from plugind.actors.registration.inbox import RegistrationInbox
from plugind.protocol import messages as m
from plugind.protocol.plugins import Plugin

PLUGIN = Plugin("T", "a", "/reg/a.sock", ("1.0.0",), "/reg/a.sock", 1)


@attrs.frozen
class Recording:
    """The address of a handler; it records the messages that are sent to it."""

    sent: list[m.HandlerMessage] = attrs.Factory(list)

    def send_nowait(self, message: m.HandlerMessage, /) -> None:
        self.sent.append(message)


@pytest.fixture
def handler() -> Recording:
    return Recording()


@pytest.fixture
def asks(handler: Recording) -> Asks:
    asks = Asks(RegistrationInbox())
    asks.handler = handler
    return asks


def test_an_answer_to_an_earlier_ask_is_late_before_and_after_the_next_ask(asks: Asks) -> None:
    first = asks.new_ticket()
    assert asks.is_answered_by(first)
    asks.close()
    assert not asks.is_answered_by(first)
    second = asks.new_ticket()
    assert asks.is_answered_by(second)
    assert not asks.is_answered_by(first)


def test_nothing_is_withdrawn_before_anything_is_asked(handler: Recording) -> None:
    asks = Asks(RegistrationInbox())
    assert asks.handler is None
    asks.withdraw()
    asks.handler = handler
    asks.withdraw()
    assert handler.sent == []


def test_an_ask_supersedes_the_one_before_it(asks: Asks) -> None:
    first, second = asks.new_ticket(), asks.new_ticket()
    assert not asks.is_answered_by(first)
    assert asks.is_answered_by(second)


def test_a_withdraw_names_the_validate_that_was_sent(asks: Asks, handler: Recording) -> None:
    """Fault 82."""
    asks.ask_handler(m.Validate, PLUGIN)
    asks.withdraw()
    validate, withdraw = handler.sent
    assert isinstance(validate, m.Validate)
    assert asks.is_answered_by(validate.ticket)
    assert isinstance(withdraw, m.Withdraw)
    assert withdraw.ask is validate


def test_a_validate_that_is_over_is_not_withdrawn(asks: Asks, handler: Recording) -> None:
    asks.ask_handler(m.Validate, PLUGIN)
    asks.close()
    asks.withdraw()
    assert len(handler.sent) == 1


@pytest.mark.parametrize("ask", [m.Register, m.Deregister])
def test_a_register_and_a_deregister_are_not_withdrawn_because_their_answers_are_not_needed(
    asks: Asks, handler: Recording, ask: type[m.Register] | type[m.Deregister]
) -> None:
    """Behaviour 36: a Register is undone by a Deregister."""
    asks.ask_handler(ask, PLUGIN)
    asks.withdraw()
    (sent,) = handler.sent
    assert isinstance(sent, ask)
    assert sent.plugin is PLUGIN


@pytest.mark.parametrize("ask", [m.Validate, m.Register, m.Deregister])
def test_a_register_is_withdrawn_when_the_socket_is_gone(
    asks: Asks, handler: Recording, ask: type[m.Validate] | type[m.Register] | type[m.Deregister]
) -> None:
    """Fault 82: one that hangs would keep the name from the plugin that is started next."""
    asks.ask_handler(ask, PLUGIN)
    asks.withdraw_register()
    withdrawn = [sent.ask for sent in handler.sent if isinstance(sent, m.Withdraw)]
    assert withdrawn == ([handler.sent[0]] if ask is m.Register else [])
