"""Bugs that are put in on purpose, and the seeds with which ``python -m tests.fuzz`` finds them.

``python -m tests.tools.planted_bugs [--most SEEDS] [--shrink] [NAME ...]`` prints a line for each bug. A seed
finds a bug if it violates a rule with the bug and none without it. The exit code is 1 if a bug is not found.

Some bugs are invented. The others are bugs that plugind had, put back by taking out their fixes
(``plugind.tests.tools.old_bugs``). Tests play the few events of :data:`NEW` and :data:`OLD` that find each bug. If the
events no longer find it, because the order of tasks has changed, ``--shrink`` finds others. If a bug can no longer be
put in, because the code that it patches has moved, its patch must be repaired here.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest.mock import patch

import attrs
import trio

from plugind.actors.devices.register_calls import RegisterCalls
from plugind.actors.grpc import endpoints
from plugind.actors.grpc.client.dial import Judge
from plugind.actors.grpc.client.registration_channel import RegistrationChannel
from plugind.actors.handlers.calls import BROKE, HandlerCalls, MethodCall
from plugind.actors.handlers.served import NameTurns, Served
from plugind.actors.registration import actor as registration
from plugind.actors.registration import reports
from plugind.actors.registration.conversation import Conversation
from plugind.actors.simulation import directory as simulated_directory
from plugind.protocol.discovery import sockets as discovery
from plugind.protocol.discovery.watches import Q_OVERFLOW
from plugind.protocol.health.liveness import ConnectAnswer, EndpointAnswer, Schedule, Subject
from plugind.protocol.identity import Identity
from plugind.protocol.messages.discovery import ScanCompleted, SocketAppeared
from plugind.protocol.messages.liveness import WatchLiveness
from plugind.protocol.messages.reconciler import (
    Claimed,
    HandlerAdded,
    HandlerPort,
    HandlerRemoved,
    ReconcilerMessage,
    SocketDialed,
)
from plugind.protocol.messages.registration import Admitted, ListenerFound, NameFreed
from plugind.protocol.messages.status import RoleChanged, ServingChanged
from plugind.protocol.plugins.info import Plugin
from plugind.protocol.plugins.status import Ending, Outcome, StateName
from plugind.protocol.registration import following
from plugind.protocol.registration.crashes import Crash
from plugind.protocol.registration.dial_queue import DialQueue
from plugind.protocol.registration.info_deadline import InfoDeadline
from plugind.protocol.registration.lives import Life, Lives
from plugind.protocol.trust.users import Trust
from plugind.protocol.world import worlds as world
from plugind.protocol.world.effects import Effect, RegistrationCrashedError, Send, Show
from plugind.protocol.world.endpoint_owners import EndpointOwner, EndpointOwners
from plugind.tests.fuzz.device_calls import DIRECTORY
from plugind.tests.fuzz.run import EVENTS, SeedResult, numbers, simulate
from plugind.tests.fuzz.shrink import shrink
from plugind.tests.fuzz.watched_node import WatchedNetwork
from plugind.tests.tools import (
    csi_bugs,
    device_bugs,
    directory_bugs,
    dra_bugs,
    dra_health_bugs,
    health_bugs,
    lease_bugs,
    link_bugs,
    offer_bugs,
    old_bugs,
    registration_bugs,
)
from plugind.tests.tools.seams import inotify_events, reconciler_effects, reconciler_messages, shown_states

#: A context manager that puts a bug in while it is entered.
Bug = Callable[[], AbstractContextManager[None]]


@contextmanager
def drop_a_message() -> Iterator[None]:
    """The reconciler loses every 40th message of its inbox.

    Reports of dials do not count: without one a socket only waits less.
    """
    counts = itertools.count(1)
    with reconciler_messages(lambda message: not isinstance(message, SocketDialed) and next(counts) % 40 == 0):
        yield


@contextmanager
def ignore_an_overflow() -> Iterator[None]:
    """An overflow of the event queue goes unnoticed, and no scan follows."""
    with inotify_events(lambda notice: bool(notice[1] & Q_OVERFLOW)):
        yield


@contextmanager
def let_two_operations_overlap() -> Iterator[None]:
    """Calls of one name do not take turns, so they run side by side."""
    with (
        patch.object(NameTurns, "take_nowait", lambda *_: True),
        patch.object(NameTurns, "pass_on", lambda *_: None),
    ):
        yield


@contextmanager
def admit_two_of_one_name() -> Iterator[None]:
    """A plugin is admitted while another of its name is registering or leaving."""
    handlers: dict[str, HandlerPort] = {}

    def hasty(message: ReconcilerMessage, effects: list[Effect]) -> list[Effect]:
        match message:
            case HandlerAdded():
                handlers[message.type] = message.handler
            case HandlerRemoved():
                handlers.pop(message.type, None)
            case Claimed() if message.info.type in handlers and not any(
                isinstance(effect, Send) and effect.path == message.path for effect in effects
            ):
                admitted = Admitted(message, handlers[message.info.type])
                return [*effects, Send(message.path, admitted)]
            case Claimed():
                for effect in effects:
                    if isinstance(effect, Send) and isinstance(effect.message, Admitted):
                        handlers[message.info.type] = effect.message.handler
            case _:
                pass
        return effects

    with reconciler_effects(hasty):
        yield


@contextmanager
def register_without_validating() -> Iterator[None]:
    """An admitted plugin is registered at once."""

    async def accept(_served: Served, _plugin: Plugin) -> Ending:
        await trio.lowlevel.checkpoint()
        return Ending(Outcome.OK)

    with patch.object(Served, "validate", accept):
        yield


@contextmanager
def notify_before_registering() -> Iterator[None]:
    """The plugin is notified that it is registered, and its handler has not registered it."""

    async def skip(_served: Served, _plugin: Plugin, _file: Identity | None, begins: Callable[[], bool]) -> Ending:
        await trio.lowlevel.checkpoint()
        begins()
        return Ending(Outcome.OK)

    with patch.object(Served, "register", skip):
        yield


@contextmanager
def show_gone_sockets() -> Iterator[None]:
    """The view keeps every fifth socket that is gone."""
    with shown_states(lambda change: change.state is StateName.GONE and change.generation % 5 == 0):
        yield


@contextmanager
def show_no_roles() -> Iterator[None]:
    """Roles are never shown, so every instance counts as active."""

    def silent(_message: ReconcilerMessage, effects: list[Effect]) -> list[Effect]:
        return [e for e in effects if not (isinstance(e, Show) and isinstance(e.message, RoleChanged))]

    with reconciler_effects(silent):
        yield


@contextmanager
def leave_connections_open() -> Iterator[None]:
    """A registration does not close its connections."""
    with patch.object(RegistrationChannel, "close", lambda self: None):
        yield


@contextmanager
def serve_one_ask_at_a_time() -> Iterator[None]:
    """A handler serves one call at a time, whatever the name."""
    take_nowait, take, pass_on = NameTurns.take_nowait, NameTurns.take, NameTurns.pass_on

    with (
        patch.object(NameTurns, "take_nowait", lambda self, _: take_nowait(self, "")),
        patch.object(NameTurns, "take", lambda self, _: take(self, "")),
        patch.object(NameTurns, "pass_on", lambda self, _: pass_on(self, "")),
    ):
        yield


@contextmanager
def believe_the_end_of_a_process() -> Iterator[None]:
    """The sockets of a process that ended are shown as not serving, even if another process listens there."""
    ended: set[str] = set()
    ask, judge = Schedule.ask, Schedule.judge

    def asking(self: Schedule, path: str) -> None:
        ended.add(path)
        ask(self, path)

    def believing(
        self: Schedule, subject: Subject, answer: ConnectAnswer, now: float, endpoint: EndpointAnswer | None = None
    ) -> ServingChanged | ListenerFound | None:
        if subject.path in ended:
            ended.discard(subject.path)
            answer = ConnectAnswer.REFUSED
        return judge(self, subject, answer, now, endpoint)

    with patch.object(Schedule, "ask", asking), patch.object(Schedule, "judge", believing):
        yield


@contextmanager
def ignore_the_end_of_a_process() -> Iterator[None]:
    """The sockets of a process that ended are looked at when their minute is over, and no sooner."""
    with patch.object(Schedule, "ask", lambda self, path: None):
        yield


@contextmanager
def look_at_no_stale_socket() -> Iterator[None]:
    """A stale socket is tried when its backoff is over, and no sooner."""
    watch = Schedule.watch

    def watching(self: Schedule, asked: WatchLiveness, now: float, *, process_is_watched: bool) -> None:
        if asked.registered:
            watch(self, asked, now, process_is_watched=process_is_watched)

    with patch.object(Schedule, "watch", watching):
        yield


@contextmanager
def look_no_more_at_what_refused() -> Iterator[None]:
    """A plugin that does not serve is never looked at again."""
    judge = Schedule.judge

    def giving_up(
        self: Schedule, subject: Subject, answer: ConnectAnswer, now: float, endpoint: EndpointAnswer | None = None
    ) -> ServingChanged | ListenerFound | None:
        found = judge(self, subject, answer, now, endpoint)
        if isinstance(found, ServingChanged) and not found.serving:
            self.unwatch(subject.path)
        return found

    with patch.object(Schedule, "judge", giving_up):
        yield


@contextmanager
def report_no_end_of_a_registration() -> Iterator[None]:
    """A registration does not report that it has ended, and the log has no line for it."""
    with (
        patch.object(registration, "Deregistered", lambda *_: None),
        patch.object(reports, "Deregistered", lambda *_: None),
    ):
        yield


@contextmanager
def dial_whatever_is_there() -> Iterator[None]:
    """A dial connects to the socket that is at the path by then, whatever the look found there."""
    dial = WatchedNetwork.dial

    async def by_path(
        network: WatchedNetwork,
        path: str,
        *,
        identity: Identity,
        root: str,
        timeout: float,
        refused_grace: float,
        judge: Judge,
    ) -> RegistrationChannel:
        del identity
        return await dial(network, path, root=root, timeout=timeout, refused_grace=refused_grace, judge=judge)

    with patch.object(WatchedNetwork, "dial", by_path):
        yield


@contextmanager
def believe_every_removal() -> Iterator[None]:
    """A removal makes a new generation, also of a socket that has been found already after it."""
    with patch.object(Identity, "is_exact", property(lambda _: False)):
        yield


@contextmanager
def enter_every_directory() -> Iterator[None]:
    """It does not matter who may write to a directory."""
    with (
        patch.object(discovery, "judge", lambda *_, **__: None),
        patch.object(simulated_directory, "root_insecurity", lambda *_: None),
    ):
        yield


@contextmanager
def trust_everybody() -> Iterator[None]:
    """Plugins of all users are registered."""
    with patch.object(Trust, "refusal", lambda *_: None):
        yield


@contextmanager
def let_everybody_share_a_name() -> Iterator[None]:
    """A name that a user has is admitted for others."""
    with patch.object(world, "taken_by_another_user", lambda *_: None):
        yield


@contextmanager
def notify_whoever_listens() -> Iterator[None]:
    """A plugin is notified of its registration whatever user listens by then."""
    dial = Conversation.dial

    async def careless(self: Conversation, *args: Any, uid: int | None = None, **options: Any) -> bool:
        del uid
        return await dial(self, *args, **options)

    with patch.object(Conversation, "dial", careless):
        yield


@contextmanager
def dial_at_once_after_a_crash() -> Iterator[None]:
    """The successor of a registration that crashed tries again without a pause, however many have crashed."""
    first = following.first

    def at_once(appeared: SocketAppeared, crash: Crash | None = None) -> following.Try | following.Pause:
        del crash
        return first(appeared)

    with patch.object(following, "first", at_once):
        yield


@contextmanager
def blame_the_plugin() -> Iterator[None]:
    """A handler that breaks counts as one that refuses."""

    make = HandlerCalls.make

    async def blaming(self: HandlerCalls, call: MethodCall) -> Ending:
        ending = await make(self, call)
        if ending.outcome is not Outcome.BROKEN:
            return ending
        return Ending(Outcome.REFUSED, ending.error.removeprefix(BROKE))

    with patch.object(HandlerCalls, "make", blaming):
        yield


@contextmanager
def forget_short_lives() -> Iterator[None]:
    """A socket is dialed at once, however short the lives before it were."""
    with patch.object(Lives, "hold", lambda *_: None):
        yield


@contextmanager
def forget_lives_that_were_told_nothing() -> Iterator[None]:
    """A life counts as short only if its plugin was told yes or no."""
    with patch.object(Life, "dialed", lambda *_: None):
        yield


@contextmanager
def tell_nobody_that_a_name_is_free() -> Iterator[None]:
    """A plugin that was refused its name tries again when its backoff is over, and no sooner."""

    def silent(_message: ReconcilerMessage, effects: list[Effect]) -> list[Effect]:
        return [e for e in effects if not (isinstance(e, Send) and isinstance(e.message, NameFreed))]

    with reconciler_effects(silent):
        yield


@contextmanager
def let_retries_go_first() -> Iterator[None]:
    """The queue for dial slots takes retries for first attempts, and the other way round."""
    add = DialQueue.add

    def adding(self: DialQueue[object], waiter: object, now: float, *, retry: bool) -> None:
        add(self, waiter, now, retry=not retry)

    with patch.object(DialQueue, "add", adding):
        yield


@contextmanager
def let_plugins_share_endpoints() -> Iterator[None]:
    """A plugin may have the endpoint of another one (fault 79)."""
    with patch.object(EndpointOwners, "other_owner", lambda *_, **_by_name: None):
        yield


@contextmanager
def let_users_keep_endpoints_from_root() -> Iterator[None]:
    """An endpoint belongs to the plugin that names it first, also if that is an unprivileged user's (fault 79)."""
    other_owner = EndpointOwners.other_owner

    def first_owner(
        self: EndpointOwners, named: tuple[str, str], endpoint: str, file: Identity | None, *, privileged: bool
    ) -> EndpointOwner | None:
        del privileged
        return other_owner(self, named, endpoint, file, privileged=False)

    with patch.object(EndpointOwners, "other_owner", first_owner):
        yield


@contextmanager
def let_endpoints_be_anywhere() -> Iterator[None]:
    """A plugin may name any file as its endpoint (fault 43)."""
    with patch.object(endpoints, "refusal", lambda *_: None):
        yield


@contextmanager
def look_for_a_missing_endpoint_once() -> Iterator[None]:
    """An endpoint that did not exist is shown as missing for ever."""
    take = Schedule.take_awaited

    def once(self: Schedule, now: float) -> list[Subject]:
        return [subject for subject in take(self, now) if subject.endpoint_problem is None]

    with patch.object(Schedule, "take_awaited", once):
        yield


@contextmanager
def forget_what_a_double_crash_leaves() -> Iterator[None]:
    """A registration that crashes while the reconciler is down leaves nothing to its successor."""
    run = registration.run

    async def forgetting(*args: Any) -> None:
        try:
            await run(*args)
        except RegistrationCrashedError as crash:
            raise (crash.__cause__ or crash) from None

    with patch.object(registration, "run", forgetting):
        yield


@contextmanager
def keep_plugins_of_a_directory_that_was_taken() -> Iterator[None]:
    """A server whose socket was replaced answers no call any more, and lets nothing go."""

    async def close(_calls: RegisterCalls, _reason: str) -> None:
        await trio.lowlevel.checkpoint()

    def is_of_the_server(message: ReconcilerMessage) -> bool:
        return isinstance(message, ScanCompleted) and message.root == DIRECTORY

    with patch.object(RegisterCalls, "close", close), reconciler_messages(is_of_the_server):
        yield


@contextmanager
def report_nothing_again() -> Iterator[None]:
    """What was registered by a call is lost when the reconciler crashes."""

    async def report_again(_calls: RegisterCalls) -> None:
        await trio.lowlevel.checkpoint()

    with patch.object(RegisterCalls, "report_again", report_again):
        yield


@contextmanager
def give_plugins_that_do_not_serve_yet_a_second() -> Iterator[None]:
    """GetInfo's second counts from the call, whether the plugin has read anything or not."""
    look = InfoDeadline.look

    def hasty(deadline: InfoDeadline, now: float, *, idle: bool) -> float | None:
        return look(deadline, now, idle=False)

    with patch.object(InfoDeadline, "look", hasty):
        yield


@contextmanager
def wait_for_plugins_that_have_read() -> Iterator[None]:
    """A plugin that has read the request and says nothing has as long as one that has not."""
    look = InfoDeadline.look

    def lenient(deadline: InfoDeadline, now: float, *, idle: bool) -> float | None:
        return look(deadline, now, idle=True)

    with patch.object(InfoDeadline, "look", lenient):
        yield


@attrs.frozen
class Planted:
    """A bug, and the fewest events that find it."""

    bug: Bug
    #: The rule that the events violate first.
    rule: str
    seed: int
    #: Numbers of events of the seed's script, as ``--shrink`` prints them.
    events: tuple[int, ...]

    @property
    def name(self) -> str:
        """The name of the bug on the command line."""
        return getattr(self.bug, "__name__", "?")

    def with_it(self) -> SeedResult:
        """Play the events on plugind with the bug."""
        with self.bug():
            return simulate(self.seed, only=self.events)

    def without_it(self) -> SeedResult:
        """Play the events on plugind without the bug; several bugs may have the same ones."""
        return _without_bugs(self.seed, self.events)


@functools.cache
def _without_bugs(seed: int, events: tuple[int, ...]) -> SeedResult:
    return simulate(seed, only=events)


#: Invented bugs.
NEW = (
    Planted(drop_a_message, "delay", 0, (62, 63, 64, 73, 74, 76, 77, 78, 80, 82, 83, 153, 158)),
    Planted(
        enter_every_directory,
        "directory",
        2,
        (126, 128, 132, 153, 154, 155, 157, 160, 162, 163, 164, 165, 166, 167, 168, 170, 172, 237),
    ),
    Planted(registration_bugs.skip_a_deregistration, "log", 0, (176, 191, 192, 193)),
    Planted(ignore_an_overflow, "delay", 9, (0, 1, 3)),
    Planted(registration_bugs.reuse_a_backoff, "backoff", 0, (252, 255)),
    Planted(let_two_operations_overlap, "one-per-name", 0, (193, 198)),
    Planted(admit_two_of_one_name, "unregister-first", 3, (168, 169, 171)),
    Planted(register_without_validating, "order", 0, (199,)),
    Planted(notify_before_registering, "order", 0, (199,)),
    Planted(show_gone_sockets, "leak", 0, (176, 177, 178, 179, 180)),
    Planted(show_no_roles, "view", 1, (193, 199)),
    Planted(leave_connections_open, "one-per-path", 0, (189, 190, 192)),
    Planted(serve_one_ask_at_a_time, "delay", 1, (162, 165, 167, 198)),
    Planted(dial_whatever_is_there, "generation", 3, (70, 79, 95)),
    Planted(believe_every_removal, "generation", 16, (58, 60, 61, 65, 66, 68, 74, 77, 78, 104, 105, 106)),
    Planted(registration_bugs.count_dials_that_find_another_socket, "backoff", 3, (29, 32, 34, 41, 42, 43, 44, 47)),
    Planted(forget_short_lives, "lives", 13, (134, 221, 226)),
    Planted(forget_lives_that_were_told_nothing, "lives", 34, (180, 184, 185, 186)),
    Planted(dial_at_once_after_a_crash, "backoff", 1, (176, 179, 180)),
    Planted(believe_the_end_of_a_process, "serving", 0, (195, 197, 198, 199)),
    Planted(ignore_the_end_of_a_process, "serving", 128, (178, 185, 199)),
    Planted(look_at_no_stale_socket, "stale", 3666, (4, 549, 551)),
    Planted(look_no_more_at_what_refused, "serving", 66, (160, 192, 194)),
    Planted(report_no_end_of_a_registration, "log", 0, (199,)),
    Planted(tell_nobody_that_a_name_is_free, "turns", 35, (86, 88, 89, 100, 102, 105, 107, 108)),
    Planted(
        let_retries_go_first,
        "newcomers",
        543,
        (22, 25, 27, 28, 29, 31, 32, 33, 34, 35, 45, 47, 48, 50, 51, 230, 231, 236, 556, 583, 585, 587, 611, 614),
    ),
    Planted(trust_everybody, "trust", 0, (222,)),
    Planted(let_everybody_share_a_name, "trust", 0, (200, 225)),
    Planted(let_plugins_share_endpoints, "endpoint", 30, (135, 253, 254)),
    Planted(let_users_keep_endpoints_from_root, "endpoint", 48, (61, 67, 242, 252)),
    Planted(let_endpoints_be_anywhere, "endpoint", 0, (198, 251)),
    Planted(look_for_a_missing_endpoint_once, "endpoint", 32, (197, 258)),
    Planted(notify_whoever_listens, "trust", 0, (196, 200, 223, 227)),
    Planted(blame_the_plugin, "blame", 1, (8, 12, 13)),
    Planted(forget_what_a_double_crash_leaves, "order", 5, (163, 254, 262)),
    Planted(keep_plugins_of_a_directory_that_was_taken, "converges", 7, (138, 301, 318)),
    Planted(report_nothing_again, "calls", 91, (178, 184, 260, 273)),
    Planted(give_plugins_that_do_not_serve_yet_a_second, "patience", 4, (153, 200)),
    Planted(wait_for_plugins_that_have_read, "patience", 4, (47, 200)),
    Planted(registration_bugs.undo_nothing_when_a_notification_is_interrupted, "order", 1, (49, 58, 60, 64, 79, 91)),
    Planted(registration_bugs.owe_once_register_has_ended, "order", 1, (161, 162, 163)),
    Planted(registration_bugs.keep_the_name_of_a_refused_plugin, "drivers", 3, (570, 571)),
    Planted(registration_bugs.release_a_name_before_deregister, "view", 2, (100, 103, 111)),
    Planted(registration_bugs.pass_no_turn_on, "converges", 0, (87, 93, 98, 99, 100)),
    Planted(directory_bugs.let_users_share_directories, "directory", 5, (199, 258, 373)),
    Planted(directory_bugs.look_only_at_the_nearest_directory, "directory", 9, (161, 197, 375, 379)),
    Planted(link_bugs.keep_links_of_what_is_deregistered, "follow", 4, (258,)),
    Planted(link_bugs.deregister_what_cannot_be_followed, "follow", 2, ()),
    Planted(
        link_bugs.follow_no_more_after_an_error, "follow", 19, (82, 86, 87, 106, 108, 109, 112, 114, 116, 117, 118, 119)
    ),
    Planted(link_bugs.lose_delayed_reports, "view", 464, (29,)),
    Planted(link_bugs.tell_links_no_role, "view", 9, (257,)),
    Planted(device_bugs.let_the_newest_plugin_serve_at_once, "surge", 0, (34, 335, 339, 340, 348)),
    Planted(device_bugs.count_the_devices_of_all_plugins, "devices", 0, (368,)),
    Planted(device_bugs.leave_lost_devices_healthy, "devices", 0, (368,)),
    Planted(device_bugs.let_no_resource_go, "grace", 0, (369,)),
    Planted(device_bugs.forget_resources_in_a_crash, "devices", 1, (340, 342, 343, 346, 347)),
    Planted(offer_bugs.lose_devices_when_a_follow_crashes, "surge", 2, ()),
    Planted(offer_bugs.remove_devices_when_a_follow_crashes, "surge", 2, ()),
    Planted(offer_bugs.let_go_of_all_when_another_process_serves, "follow", 2, ()),
    Planted(offer_bugs.make_no_socket_anew, "calls", 2, (0, 420, 421)),
    Planted(offer_bugs.keep_devices_that_are_listed_no_more, "devices", 2, (404,)),
    Planted(device_bugs.tell_nothing_after_a_crash, "devices", 8, (36, 340, 346, 348)),
    Planted(health_bugs.believe_two_misses, "health", 2, ()),
    Planted(health_bugs.count_misses_that_are_not_in_a_row, "health", 2, ()),
    Planted(health_bugs.stay_unhealthy, "health", 2, ()),
    Planted(health_bugs.check_no_more_after_a_failure, "health", 2, ()),
    Planted(health_bugs.wait_for_ever_for_an_answer, "health", 2, ()),
    Planted(health_bugs.take_a_refusal_for_an_answer, "health", 2, (554,)),
    Planted(health_bugs.deregister_what_is_unhealthy, "follow", 2, ()),
    Planted(csi_bugs.register_a_driver_that_does_not_say_where_it_runs, "asked-first", 3, ()),
    Planted(csi_bugs.register_a_driver_with_another_name, "asked-first", 3, ()),
    Planted(csi_bugs.wait_for_a_driver_that_has_left, "drivers", 3, ()),
    Planted(csi_bugs.let_the_newer_driver_replace_the_older_at_once, "drivers", 3, ()),
    Planted(csi_bugs.show_the_first_facts_for_ever, "facts", 3, ()),
    Planted(csi_bugs.let_drivers_contradict_each_other, "topology", 3, ()),
    Planted(csi_bugs.start_for_ever, "health", 3, ()),
    Planted(csi_bugs.wait_for_no_endpoint, "drivers", 3, ()),
    Planted(dra_bugs.use_the_newest_whether_connected_or_not, "roles", 23, ()),
    Planted(dra_bugs.call_an_instance_that_is_not_used, "claims", 23, ()),
    Planted(dra_bugs.never_say_that_a_driver_is_gone, "driver-gone", 23, ()),
    Planted(dra_bugs.forget_that_a_driver_was_lost, "driver-gone", 23, ()),
    Planted(dra_bugs.connect_only_once, "drivers", 23, ()),
    Planted(dra_bugs.wait_for_the_endpoint_in_register, "drivers", 23, ()),
    Planted(dra_bugs.count_an_instance_that_was_lost, "facts", 23, ()),
    Planted(dra_bugs.let_a_call_hang, "claims", 23, ()),
    Planted(dra_health_bugs.believe_a_driver_for_ever, "device-health", 23, ()),
    Planted(dra_health_bugs.let_all_words_hold_for_30_seconds, "device-health", 23, ()),
    Planted(dra_health_bugs.forget_devices_that_are_missing, "device-health", 23, ()),
    Planted(dra_health_bugs.count_the_times_of_devices_by_the_wall_clock, "device-health", 23, ()),
    Planted(dra_health_bugs.lose_devices_with_their_stream, "device-health", 23, ()),
    Planted(dra_health_bugs.keep_devices_without_a_connection, "device-health", 23, ()),
    Planted(dra_health_bugs.ask_for_what_is_not_implemented, "device-health", 23, ()),
    Planted(dra_health_bugs.ask_for_what_is_not_announced, "device-health", 23, ()),
    Planted(dra_health_bugs.open_a_stream_once, "device-health", 23, ()),
    Planted(dra_health_bugs.open_a_stream_again_at_once, "device-health", 23, ()),
    Planted(dra_health_bugs.take_the_first_list_only, "device-health", 23, ()),
    Planted(dra_health_bugs.take_any_number_of_devices, "device-health", 23, ()),
    Planted(dra_health_bugs.show_the_devices_of_all_instances, "device-health", 23, ()),
    Planted(dra_health_bugs.crash_because_of_nonsense, "drivers", 23, ()),
    Planted(dra_health_bugs.blame_a_driver_for_its_stream, "drivers", 23, ()),
    Planted(dra_health_bugs.hang_up_when_a_follow_crashes, "drivers", 23, ()),
    Planted(dra_health_bugs.take_the_crash_of_a_follow_for_the_end_of_a_connection, "facts", 23, ()),
    Planted(dra_health_bugs.keep_the_connection_to_the_endpoint_of_another, "roles", 23, ()),
    Planted(dra_health_bugs.take_any_answer_about_claims, "claims", 23, ()),
    Planted(dra_health_bugs.refresh_by_the_wall_clock, "facts", 3, ()),
    Planted(dra_health_bugs.date_facts_by_the_clock_of_the_start, "facts", 3, ()),
    Planted(lease_bugs.withhold_for_ever, "uncertain", 20, (529, 533)),
    Planted(lease_bugs.forget_held_leases_at_a_start, "told", 12, (484, 532)),
    Planted(lease_bugs.ignore_the_ends_of_owners, "freed", 20, (480,)),
    Planted(lease_bugs.let_them_wait_for_ever, "asked", 4, (526, 527, 529)),
    Planted(lease_bugs.keep_leases_over_a_boot, "boot", 21, (523, 531, 532)),
    Planted(lease_bugs.free_what_was_lost, "withheld", 132, (430, 433, 434, 503, 504, 505)),
    Planted(lease_bugs.give_devices_twice, "twice", 4, (520, 531, 533)),
    Planted(lease_bugs.withhold_what_was_refused, "refused", 85, (512, 514, 516)),
    Planted(lease_bugs.give_unhealthy_devices, "unwell", 4, (472, 509, 511)),
    Planted(lease_bugs.let_later_ones_overtake, "line", 37, (444, 455, 483, 497)),
    Planted(lease_bugs.leave_files, "store", 21, (433, 435)),
    Planted(lease_bugs.bind_a_lease_to_two_containers, "bound", 85, (455, 465, 466, 471)),
    Planted(lease_bugs.serve_only_the_first_in_line, "line", 4, (449, 525, 526)),
    Planted(lease_bugs.leave_rows, "leak", 5, ()),
)

#: Bugs that ``simulate`` found in plugind, put back.
OLD = (
    Planted(old_bugs.look_again_without_a_pause, "livelock", 5, (12, 14, 17)),
    Planted(old_bugs.show_sockets_gone_during_a_restart, "leak", 10, (34, 86, 87, 99)),
    Planted(old_bugs.crash_while_cancelled, "crash", 94, (170, 369)),
    Planted(old_bugs.keep_a_superseded_validation, "answers", 3, (49, 52, 60)),
    Planted(old_bugs.abandon_a_deregistration, "view", 1297, (30, 33, 35, 42, 46, 47, 103, 185)),
    Planted(
        old_bugs.accept_a_socket_without_its_directory,
        "converges",
        3195,
        (10, 30, 39, 41, 53, 78, 83, 103, 109, 118, 198, 199),
    ),
    Planted(old_bugs.reuse_a_path_before_its_deregistration, "one-per-path", 2420, (80, 104, 105, 113, 114, 117, 118)),
    Planted(
        old_bugs.show_a_crashed_registration_for_ever,
        "view",
        1191,
        (20, 44, 61, 105, 110, 119, 120, 132, 141, 143, 146, 153, 154),
    ),
)


def find(bug: Bug, seeds: range, events: int) -> tuple[int, SeedResult] | None:
    """Return the first of ``seeds`` that finds ``bug``, and its outcome."""
    for seed in seeds:
        with bug():
            outcome = simulate(seed, events=events)
        if outcome.violations and not simulate(seed, events=events).violations:
            return seed, outcome
    return None


def fewest(bug: Bug, seed: int, outcome: SeedResult) -> tuple[int, ...]:
    """Return the events of ``seed`` that suffice to find ``bug`` by the rule that ``outcome`` violated first."""
    rule = outcome.violations[0].oracle

    def breaks(left: Collection[int]) -> bool:
        with bug():
            violations = simulate(seed, events=outcome.events, only=set(left)).violations
        return bool(violations) and violations[0].oracle == rule

    return shrink(numbers(outcome.events), breaks)[0]


def main(arguments: list[str] | None = None) -> int:
    """Search for the seed that finds each bug, and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--most", type=int, default=2000, help="how many seeds to try")
    parser.add_argument("--first", type=int, default=0, help="the first seed to try")
    parser.add_argument("--events", type=int, default=EVENTS)
    parser.add_argument("--shrink", action="store_true", help="print the fewest events of the seed that find the bug")
    parser.add_argument("names", nargs="*", help="bugs, by the names of their functions; all by default")
    args = parser.parse_args(arguments)
    bugs = {planted.name: planted.bug for planted in NEW + OLD}
    if unknown := set(args.names) - bugs.keys():
        parser.error(f"no such bug: {', '.join(sorted(unknown))}")
    missed = 0
    for name in args.names or bugs:
        found = find(bugs[name], range(args.first, args.first + args.most), args.events)
        if found is None:
            missed += 1
            print(f"{name}: not found in {args.most} seeds", flush=True)
            continue
        seed, outcome = found
        print(f"{name}: seed {seed}, {outcome.violations[0].oracle}: {outcome.violations[0].text}", flush=True)
        if args.shrink:
            print(f"    {fewest(bugs[name], seed, outcome)}", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
