"""Errors, classified by their origin: plugins, operators, or bugs in plugind.

:class:`PluginError` is raised for faults of plugins, handlers and file systems. It becomes a state with a reason, and
affects no other plugin. :class:`IllegalStepError` is raised for a bug in plugind, and ends the actor, which its
supervisor restarts. :class:`ConfigError` is raised for faults of the operator: the commands print it in one line and
exit with code 78, or with 1 for a :class:`SocketBusyError`, which may be temporary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator


class PluginError(Exception):
    """A plugin, a handler or a file system broke a rule; the plugin gets the text of the exception.

    Users are shown the ``cause``, the error in few words, or else the text.
    """

    cause: str | None = None

    def __init__(self, *args: object, cause: str | None = None) -> None:
        super().__init__(*args)
        self.cause = cause


class ValidationError(PluginError):
    """The info of a plugin is not acceptable. Validation rules and users' handlers raise it."""


class HandlerAwayError(PluginError):
    """The process of the handler is gone or hangs; the plugin is told nothing, and is tried again."""


class NoConnectionError(PluginError):
    """There is no connection to the endpoint of a plugin; the text says why."""

    def __init__(self, *args: object, gone: bool = False, lasting: str | None = None) -> None:
        super().__init__(*args)
        #: The text without the time for which this was tried, for a caller that keeps trying.
        self.lasting = str(self) if lasting is None else lasting
        #: Whether the endpoint is missing, or is another socket than the plugin's.
        self.gone = gone


class ConfigError(Exception):
    """The configuration cannot work; the text says what to do (exit code 78)."""


class SocketBusyError(ConfigError):
    """Another process listens on the status socket. The configuration may be right, so the exit code is 1."""


class StateError(Exception):
    """The state cannot be read or written now; the text says why."""


class ClientError(Exception):
    """A daemon could not be asked, or did not do what it was asked for. The others are kinds of it."""

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...], dict[str, object]]:
        # By default an exception is unpickled from its text alone, and the constructors of some kinds take something
        # else. Errors are pickled between the processes of multiprocessing, and of Ray.
        return _new_error, (type(self), *self.args), self.__dict__


def _new_error(kind: type[ClientError], *args: object) -> ClientError:
    return kind.__new__(kind, *args)


class IllegalStepError(Exception):
    """An event reached a state in which it cannot happen: a bug in plugind."""


def leaves(error: BaseException) -> Iterator[BaseException]:
    """Yield the leaves of ``error`` if it is a group, or else ``error`` itself."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from leaves(inner)
    else:
        yield error
