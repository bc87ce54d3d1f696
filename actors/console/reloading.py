"""The reloader: an actor that reads the configuration of ``plugind run`` again, and has the node use it.

It is asked by SIGHUP and by ``POST /reload``, and does one after the other. A configuration that cannot be used changes
nothing: the one before it stays in force, and the log, the health and a metric say so (fault 89).

These messages bring new values to the actors that own them:

===========================  ========================================  ================================================
message                      to                                        with
===========================  ========================================  ================================================
``SettingsChanged``          each registration actor                   timeouts, backoff, limits of GetInfo, who is
                                                                       trusted, where endpoints may be
``TrustChanged``             the watchers, the liveness actor, the     who is trusted
                             status actor
``RootAdded``,               the reconciler                            a root, and the inbox of its watcher
``RootRemoved``
``RootsChanged``             the liveness actor, the status actor      the roots, and where endpoints may be
``PausesChanged``            the links                                 the pauses before a follow is started again
``WorldChanged``             the reconciler                            how many plugins may have one name, the delays
                                                                       after short lives
``LeaseRules``               the lease actor                           pools, limits, operators, permits
``ExpectationChanged``       the status actor, the devices actor       which plugins and devices are expected
``ConfigurationRead``        the status actor                          when the files were read, and why they are not
                                                                       used
===========================  ========================================  ================================================
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, assert_never

import attrs
import trio

from ...protocol.errors import ConfigError
from ...protocol.logs.lines import Level
from ...protocol.messages.config import ConfigurationAsked, ConfigurationShown, ReloadAsked, Reloaded, ReloaderMessage
from ...protocol.settings.config import Config
from ...protocol.settings.given import SettingsError
from ...protocol.settings.reload import changed_while_running, may_change
from ...supervisor import NodeEndedError
from ..io.worker_thread import WorkerThread
from ..logs.lines import DaemonLog
from ..messaging.mailbox import send_answer
from .configured import Configured
from .service_manager import reloading
from .signals import STOPS
from .start import REQUESTS

if TYPE_CHECKING:
    from .in_force import InForce

#: How many requests can wait.
_SIZE: Final = 8
#: Seconds to read the files, which can lie on a disk that hangs.
READ_DEADLINE: Final = 4.0


def _without_signals(read: Callable[[], Configured]) -> Configured:
    """Read the configuration in a thread that receives no signals."""
    signal.pthread_sigmask(signal.SIG_BLOCK, (*STOPS, *REQUESTS))
    return read()


class Reconfigurable(Protocol):
    """The methods of a node that the reloader uses."""

    async def reconfigure(self, config: Config) -> None:
        """Use this configuration, as far as the node can change it while it runs."""

    async def note_reload(self, refused: str | None) -> None:
        """Show that the configuration was read again, and why it is not used."""


class Reloader:
    """Reads the configuration again."""

    def __init__(self, settings: Configured, read: Callable[[], Configured], log: DaemonLog) -> None:
        """Begin with the ``settings`` in force; ``read`` returns the newest ones."""
        self._settings = settings
        self._read = read
        self._log = log
        #: Whether the service manager was told that the daemon is ready, so that it can be told of reloads.
        self.is_announced = False
        #: New values of settings that need a restart.
        self._waiting: tuple[InForce, ...] = ()
        self._send, self._receive = trio.open_memory_channel[ReloaderMessage](_SIZE)

    @property
    def address(self) -> trio.MemorySendChannel[ReloaderMessage]:
        """The address for requests for a reload, or for the settings in force."""
        return self._send

    async def ask(self) -> Reloaded:
        """Request a reload, and return its result."""
        reply, answer = trio.open_memory_channel[Reloaded](1)
        await self._send.send(ReloadAsked(reply))
        return await answer.receive()

    async def run(self, node: Reconfigurable) -> None:
        """Answer requests until cancelled, or until the node has ended."""
        async for message in self._receive:
            match message:
                case ReloadAsked():
                    # READY=1 ends a reload, but also a start, for which it could come too early.
                    with reloading() if self.is_announced else nullcontext():
                        answer = await self._reload_unless_ended(node)
                    send_answer(message.reply, answer)
                case ConfigurationAsked():
                    send_answer(message.reply, self._shown())
                case _:
                    assert_never(message)

    def _shown(self) -> ConfigurationShown:
        # The table of all settings is imported for the first such request.
        from .in_force import in_force, row

        settings = self._settings
        return ConfigurationShown(settings.files, (*map(row, in_force(settings)),), (*map(row, self._waiting),))

    async def _reload_unless_ended(self, node: Reconfigurable) -> Reloaded:
        try:
            return await self._reload(node)
        except NodeEndedError:
            return Reloaded(refused=("the node has ended",))

    async def _reload(self, node: Reconfigurable) -> Reloaded:
        try:
            new = await self._read_again()
            answer = await self._use(node, new)
        except SettingsError as error:
            answer = Reloaded(refused=tuple(map(str, error.problems)))
        except ConfigError as error:
            answer = Reloaded(refused=(str(error),))
        refused = answer.refused[0] if answer.refused else None
        self._log_answer(answer)
        await node.note_reload(refused)
        return answer

    async def _read_again(self) -> Configured:
        # Reading waits for disks, and possibly for a name server. The thread ends afterwards: a thread that is left
        # while the process ends would receive signals that the main thread blocks by then, which would end the process.
        thread = WorkerThread("reload")
        try:
            with trio.move_on_after(READ_DEADLINE):
                return await thread.run(partial(_without_signals, self._read))
        finally:
            thread.close()
        raise ConfigError(f"the configuration could not be read within {READ_DEADLINE:g} s")

    async def _use(self, node: Reconfigurable, new: Configured) -> Reloaded:
        # The comparison of settings is imported for the first reload.
        from .in_force import differing

        old = self._settings
        others = differing(old, new)
        config = changed_while_running(old.config, new.config)
        if config != old.config:
            await node.reconfigure(config)
        self._log.set_level(new.log_level)
        may = partial(may_change, old=old.config, new=new.config)
        given = {key: value for key, value in old.given.items() if not may(key)}
        given |= {key: value for key, value in new.given.items() if may(key)}
        self._settings = attrs.evolve(old, config=config, log_level=new.log_level, given=given, files=new.files)
        self._waiting = tuple(other for other in others if not may(other.setting.key))
        changed = tuple(other.setting.key for other in others if may(other.setting.key))
        return Reloaded(changed, tuple(waiting.setting.key for waiting in self._waiting))

    def _log_answer(self, answer: Reloaded) -> None:
        if answer.refused:
            self._log.event(
                Level.ERROR,
                "the configuration is not used, and the one before it stays in force",
                error=answer.refused[0],
                problems=len(answer.refused),
            )
        else:
            level = Level.WARNING if answer.needs_restart else Level.INFO
            self._log.event(
                level,
                "the configuration was read again",
                changed=", ".join(answer.changed) or None,
                needs_restart=", ".join(answer.needs_restart) or None,
            )
