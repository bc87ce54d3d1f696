"""Errors by whose fault they are.

:class:`PluginError` is theirs: a plugin, a handler or a file system did what it may not. It becomes a state with a
reason, and hurts nobody else. :class:`IllegalStepError` is ours: a bug, which ends the actor that met it, and its
supervisor restarts it. :class:`ConfigError` is the operator's, and is told in one line with exit code 78.
"""

from __future__ import annotations


class PluginError(Exception):
    """The outside broke a rule; the text of the exception is the reason that people are shown."""


class ValidationError(PluginError):
    """A plugin's own account of itself is not acceptable: raised by validation rules and by users' handlers."""


class ConfigError(Exception):
    """What the operator asked for cannot be; the text says what to do (exit code 78)."""


class IllegalStepError(Exception):
    """An event reached a state in which it cannot happen: a bug of ours."""
