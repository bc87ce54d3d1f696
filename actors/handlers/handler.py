"""What a handler is, and the check of one that is added.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable
from typing import Protocol

from ...protocol.plugins import InstancePolicy, Plugin


class Handler(Protocol):
    """The consumer of one plugin type: a class with these three methods.

    For each instance (``plugin.socket``, ``plugin.generation``) the calls come in the order validate, register,
    deregister. There is exactly one deregister for each register, even for one that raised. One call runs at a time for
    each name. Each call has a deadline (``Timeouts.handler``), at which it is cancelled.

    A method is best written with ``async def``. It must not block: while it does, no other task runs. A method written
    with ``def`` may block, since it is called in a thread; a thread cannot be cancelled, so at its deadline it is given
    up, and the next call for that name waits until it returns.

    To refuse a plugin, raise :class:`~plugind.protocol.errors.PluginError` or a subclass. Any other exception counts
    as a fault of the handler: it is logged with its traceback, and the plugin is sent that the handler broke.

    A class may also have an attribute ``instances``, an :class:`~plugind.protocol.plugins.InstancePolicy`, which says
    what to do when several sockets offer the same name. Without it, all are registered and the newest is active.
    """

    def validate(self, plugin: Plugin) -> Awaitable[None] | None:
        """Raise an error if the plugin is not acceptable; the plugin is sent its text."""

    def register(self, plugin: Plugin) -> Awaitable[None] | None:
        """Start to use the plugin; if this raises, the plugin is sent the error, and deregister follows."""

    def deregister(self, plugin: Plugin) -> Awaitable[None] | None:
        """Stop using the plugin: its socket is gone or replaced, or the registration failed."""


#: The methods that a handler has.
METHODS = ("validate", "register", "deregister")


def policy_of(handler: Handler) -> InstancePolicy:
    """Return the policy that ``handler`` names, or the default."""
    policy = getattr(handler, "instances", InstancePolicy.NEWEST)
    if not isinstance(policy, InstancePolicy):
        raise TypeError(f"{type(handler).__name__}.instances is {policy!r}; make it an InstancePolicy")
    return policy


def check_handler(plugin_type: str, handler: object) -> None:
    """Check that ``handler`` can be called as the handler of ``plugin_type``.

    Raises:
      TypeError: if a method is missing or cannot be called with a plugin, or ``instances`` is no policy; the text names
        what is wrong.
    """
    if isinstance(handler, type):
        name = handler.__name__
        raise TypeError(f"the handler for {plugin_type} is the class {name}; add an instance of it: {name}()")
    for method in METHODS:
        wrong = _wrong_with(getattr(handler, method, None))
        if wrong is not None:
            raise TypeError(f"the handler for {plugin_type} cannot be used: {type(handler).__name__}.{method} {wrong}")
    policy_of(handler)  # type: ignore[arg-type]  # it was checked just now


def _wrong_with(method: object) -> str | None:
    if method is None:
        return "is missing; define it with one parameter, the plugin"
    if not callable(method):
        return f"is {method!r}, which cannot be called; make it a method"
    if inspect.isgeneratorfunction(method) or inspect.isasyncgenfunction(method):
        return "is a generator, which does nothing when it is called; take the yield out"
    try:
        signature = inspect.signature(method)
    except ValueError:
        return None  # Code in C need not have one.
    try:
        signature.bind(object())
    except TypeError:
        return f"cannot be called with one argument, the plugin: its parameters are {signature}"
    return None


def is_async(method: object) -> bool:
    """Whether a call of ``method`` runs only when it is awaited, so that it can be called in the loop."""
    return inspect.iscoroutinefunction(method) or inspect.iscoroutinefunction(getattr(method, "__call__", None))  # noqa: B004 - the function
