"""The interface of handlers, and the check of a handler that is added."""

from __future__ import annotations

import inspect
import math
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Protocol

from ...protocol.errors import ConfigError
from ...protocol.plugins.info import InstancePolicy, Plugin

if TYPE_CHECKING:
    from .link import Link


class Handler(Protocol):
    """The consumer of one plugin type: a class with these four methods; ``follow`` may be None.

    For each instance (``plugin.socket``, ``plugin.generation``) the calls come in the order validate, register,
    deregister. Each register is followed by exactly one deregister, even if register raised. One call runs at a time
    for each name. Each call has a deadline (``Timeouts.of_handler``), at which it is cancelled; register is also
    cancelled when the plugin's socket is gone. A handler that sets deadlines itself can have an attribute
    ``longest_call``, the sum of the deadlines of one call in seconds. A node does not start if its deadline is not
    longer than that plus 5 seconds.

    Methods are best written with ``async def``. They must not block, because no other task runs meanwhile. A ``def``
    method is called in a thread, so it can block. A thread cannot be cancelled: at its deadline it is given up, and the
    next call for that name waits until it returns.

    To refuse a plugin, raise :class:`~plugind.protocol.errors.PluginError` or a subclass. Any other exception counts as
    a fault of the handler: it is logged with its traceback, and the plugin is sent that the handler broke.

    A class can have an attribute ``instances``, an :class:`~plugind.protocol.plugins.info.InstancePolicy`, which
    decides what happens when several sockets offer the same name. Without it, all are registered and the newest is
    active.

    ``follow`` is called for each instance once ``register`` has succeeded, runs in its own task for as long as the
    instance is registered, and is cancelled just before ``deregister`` is called; then it has 5 seconds to end. If it
    raises or returns, it is called again after 1 second, 2 seconds, and so on up to 30; the registration does not
    change. ``link``, a :class:`~plugind.actors.handlers.link.Link`, connects to the plugin's endpoint, tells whether
    the instance is the active one of its name, and takes reports of the plugin's health. ``register`` gets the same
    link if its second parameter is called ``link``.

    A handler that follows no plugins has ``follow = None``. Without type checks that line can be left out; with them, a
    misspelt ``follow`` is an error.
    """

    def validate(self, plugin: Plugin) -> Awaitable[None] | None:
        """Raise an error if the plugin is not acceptable; the plugin gets its text."""

    @property
    def register(self) -> Callable[..., Awaitable[None] | None]:
        """A method ``register(plugin)`` or ``register(plugin, link)``: start to use the plugin.

        If it raises, the plugin gets the error, and deregister follows.
        """

    def deregister(self, plugin: Plugin) -> Awaitable[None] | None:
        """Stop using the plugin: its socket is gone or replaced, or the registration failed."""

    @property
    def follow(self) -> Callable[[Plugin, Link], Awaitable[None]] | None:
        """A method ``async def follow(self, plugin, link)``, or None."""


METHODS = ("validate", "register", "deregister")


FOLLOW = "follow"


def policy_of(handler: Handler) -> InstancePolicy:
    """Return the policy that ``handler`` sets, or the default."""
    policy = getattr(handler, "instances", InstancePolicy.NEWEST)
    if not isinstance(policy, InstancePolicy):
        raise TypeError(f"{type(handler).__name__}.instances is {policy!r}; make it an InstancePolicy")
    return policy


def check_handler(plugin_type: str, handler: object, timeout: float = math.inf) -> None:
    """Check that ``handler`` can be called as the handler of ``plugin_type``, and that its calls have enough time.

    Raises:
      TypeError: if a method is missing or cannot be called with a plugin, or ``instances`` is no policy; the text names
        the problem.
      ConfigError: if one of its calls can take longer than ``timeout`` seconds.
    """
    if isinstance(handler, type):
        name = handler.__name__
        raise TypeError(f"the handler for {plugin_type} is the class {name}; add an instance of it: {name}()")
    for name in (*METHODS, FOLLOW):
        wrong = _wrong_with(name, getattr(handler, name, None))
        if wrong is not None:
            raise TypeError(f"the handler for {plugin_type} cannot be used: {type(handler).__name__}.{name} {wrong}")
    policy_of(handler)  # type: ignore[arg-type]  # it was checked just now
    _check_time(plugin_type, getattr(handler, "longest_call", 0.0), timeout)


#: Seconds that a call of a handler needs besides its waits.
CALL_SLACK = 5.0


def _check_time(plugin_type: str, longest: float, timeout: float) -> None:
    """Check that the deadlines inside a call pass before that of the call, so that the handler can report them."""
    if longest and longest + CALL_SLACK >= timeout:
        raise ConfigError(
            f"a call of the handler for {plugin_type} may wait for {longest:g} s, and is ended after {timeout:g} s:"
            f" give it more than {longest + CALL_SLACK:g} s, for example with --handler-timeout"
            f" {plugin_type}={math.ceil(longest + 2 * CALL_SLACK)}"
        )


def _wrong_with(name: str, method: object) -> str | None:
    if method is None:
        return None if name == FOLLOW else "is missing; define it with one parameter, the plugin"
    if not callable(method):
        return f"is {method!r}, which cannot be called; make it a method"
    if inspect.isgeneratorfunction(method) or inspect.isasyncgenfunction(method):
        return "is a generator, which does nothing when it is called; take the yield out"
    linked = name == FOLLOW or (name == "register" and takes_link(method))
    if linked and not is_async(method):
        return "is given a link, which cannot be used in a thread; write it with async def"
    wanted = ("the plugin", "the link") if linked else ("the plugin",)
    if not _can_be_called(method, len(wanted)):
        count = "two arguments" if linked else "one argument"
        return f"cannot be called with {count}, {' and '.join(wanted)}: its parameters are {inspect.signature(method)}"
    return None


def _can_be_called(method: Callable[..., object], arguments: int) -> bool:
    try:
        inspect.signature(method).bind(*(object(),) * arguments)
    except ValueError:
        return True  # A function in C can lack a signature.
    except TypeError:
        return False
    return True


def takes_link(register: object) -> bool:
    """Whether the second parameter of a method ``register`` is called ``link``."""
    if not callable(register):
        return False
    try:
        parameters = list(inspect.signature(register).parameters.values())
    except ValueError:
        return False
    return len(parameters) > 1 and parameters[1].name == "link" and parameters[1].kind in _POSITIONAL


_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def is_async(method: object) -> bool:
    """Whether ``method`` returns an awaitable, so that it can be called in the loop."""
    return inspect.iscoroutinefunction(method) or inspect.iscoroutinefunction(getattr(method, "__call__", None))  # noqa: B004 - the function
