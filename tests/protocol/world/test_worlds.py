"""The desired and the actual world, and the effects of their difference, message by message."""

from __future__ import annotations

import attrs
import pytest

from plugind.protocol.backoff import Backoff
from plugind.protocol.identity import Identity
from plugind.protocol.messages.discovery import EntryRefused, LookNow, ScanCompleted, SocketTouched, SocketVanished
from plugind.protocol.messages.reconciler import (
    Claimed,
    ClaimReleased,
    HandlerAdded,
    HandlerRemoved,
    PluginRegistered,
    ReconcilerMessage,
    RegistrationEnded,
    ReportAsked,
    RetryAnswer,
    RetryAnswered,
    RetryAsked,
    SocketReplaced,
    StopAsked,
    StopForced,
)
from plugind.protocol.messages.registration import (
    Admitted,
    ClaimRefused,
    HandlerAvailable,
    HandlerWithdrawn,
    NameFreed,
    NameWanted,
    NoHandler,
    TryNow,
)
from plugind.protocol.messages.status import HandlersChanged, RoleChanged, StateChanged
from plugind.protocol.plugins.info import InstancePolicy, PluginInfo
from plugind.protocol.plugins.status import StateName
from plugind.protocol.registration.crashes import Crash
from plugind.protocol.registration.lives import Lives
from plugind.protocol.world.worlds import (
    AnswerCaller,
    Effect,
    HandlerRetired,
    Look,
    PendingDeregistration,
    Send,
    Show,
    StartRegistration,
    Stopped,
    World,
)
from plugind.tests.protocol.sockets import Nowhere, appeared

A, B, C = "/reg/a.sock", "/reg/b.sock", "/reg/c.sock"
INFO = PluginInfo("T", "x", A, ("1.0.0",))
OTHER = PluginInfo("T", "y", "/reg/.other.sock", ("1.0.0",))
NOW = 7.0
HANDLER = Nowhere()
CRASHED = RegistrationEnded("/reg/a.sock", crashed=True, error="Oops")
#: One whose actor had asked its handler to register.
OWING = attrs.evolve(CRASHED, owed=True)
CRASH = Crash(1, "Oops")
ADDED = HandlerAdded("T", HANDLER, InstancePolicy.NEWEST)


def given(*messages: ReconcilerMessage, policy: InstancePolicy = InstancePolicy.NEWEST) -> World:
    """Return a world with a handler for T that has taken these messages."""
    world = World()
    for message in (attrs.evolve(ADDED, policy=policy), *messages):
        world.handle(message, NOW)
    return world


def take(world: World, *messages: ReconcilerMessage) -> list[Effect]:
    return [effect for message in messages for effect in world.handle(message, NOW)]


def claimed(path: str = A, generation: int = 1, info: PluginInfo = INFO) -> Claimed:
    return Claimed(path, generation, info)


def registered(path: str = A, generation: int = 1, info: PluginInfo = INFO) -> tuple[ReconcilerMessage, ...]:
    """The messages of a socket whose plugin is registered."""
    return appeared(generation, path), claimed(path, generation, info), PluginRegistered(path, generation)


def admitted(claim: Claimed, handler: Nowhere = HANDLER) -> Send:
    return Send(claim.path, Admitted(claim, handler))


def role(path: str, generation: int, *, active: bool) -> Show:
    return Show(RoleChanged(path, generation, active))


# --- desired ----------------------------------------------------------------------------------------------------------


def test_a_socket_that_appears_is_desired_and_gets_a_registration_actor() -> None:
    """Test_DSW_AddOrUpdatePlugin_Positive_NewPlugin; Test_Run_Positive_Register, its first step."""
    world = World()

    assert take(world, appeared(1)) == [StartRegistration(appeared(1))]
    assert world.desired() == {A: 1}
    assert world.difference() == (set(), {A})


def test_a_socket_that_appears_again_is_one_entry_with_the_new_generation() -> None:
    """Test_DSW_AddOrUpdatePlugin_Positive_ExistingPlugin: its actor is notified, and no second one is started."""
    world = given(appeared(1))

    assert take(world, appeared(2)) == [Send(A, appeared(2))]
    assert world.desired() == {A: 2}


def test_a_socket_without_a_path_is_an_error() -> None:
    """Test_DSW_AddOrUpdatePlugin_Negative_PluginMissingInfo; behaviour 17."""
    world = World()

    with pytest.raises(ValueError, match=r"^socket path is empty$"):
        take(world, appeared(1, ""))
    assert world.desired() == {}


def test_a_socket_that_vanishes_is_no_longer_desired() -> None:
    """Test_DSW_RemovePlugin_Positive."""
    world = given(appeared(1))

    assert take(world, SocketVanished(A, 1)) == [Send(A, SocketVanished(A, 1))]
    assert world.desired() == {}


def test_only_a_known_socket_is_removed() -> None:
    """Behaviour 8: the removal of a path that is no socket, or of an older one, drops nothing."""
    world = given(appeared(2))

    assert take(world, SocketVanished(A, 1), SocketVanished(B, 3), SocketTouched(B, 3)) == []
    assert world.desired() == {A: 2}


def test_a_world_without_messages_does_nothing() -> None:
    """Test_Run_Positive_DoNothing."""
    world = given()

    assert take(world, ScanCompleted("/reg", first=True, paths=frozenset()), ScanCompleted("/reg", first=False)) == []
    assert (world.desired(), world.actual(), world.difference()) == ({}, {}, (set(), set()))


def test_a_touch_is_forwarded_unless_the_actor_is_stopping() -> None:
    """Behaviour 3."""
    touched = SocketTouched(A, 1)
    world = given(appeared(1))

    assert take(world, touched) == [Send(A, touched)]
    assert take(world, SocketVanished(A, 1), touched) == [Send(A, SocketVanished(A, 1))]


# --- actual -----------------------------------------------------------------------------------------------------------


def test_a_plugin_that_its_handler_registered_is_actual() -> None:
    """Behaviours 18 and 35; Test_ASW_AddPlugin_Positive_NewPlugin; Test_Run_Positive_Register."""
    world = given(appeared(1))

    assert take(world, claimed()) == [admitted(claimed())]
    assert world.actual() == {}
    assert take(world, PluginRegistered(A, 1)) == []
    assert world.actual() == {A: 1}
    assert world.difference() == (set(), set())


def test_a_plugin_without_a_path_or_a_socket_is_never_actual() -> None:
    """Test_ASW_AddPlugin_Negative_EmptySocketPath: a claim without a socket is neither answered nor stored."""
    world = given()

    assert take(world, claimed(""), PluginRegistered("", 1), claimed(B), PluginRegistered(B, 1)) == []
    assert world.actual() == {}


def test_a_plugin_that_was_released_is_no_longer_actual() -> None:
    """Test_ASW_RemovePlugin_Positive; Test_Run_Positive_RegisterThenUnregister; behaviour 36: removed at once."""
    world = given(*registered())

    take(world, SocketVanished(A, 1))
    assert world.actual() == {}
    assert take(world, ClaimReleased(A, 1), RegistrationEnded(A, crashed=False)) == []
    assert world.difference() == (set(), set())


def test_reports_of_an_older_generation_are_ignored() -> None:
    """Test_ASW_PluginExistsWithCorrectUUID_Negative_WrongUUID."""
    world = given(*registered(), appeared(2), ClaimReleased(A, 1))

    assert take(world, claimed(A, 1), PluginRegistered(A, 1), ClaimReleased(A, 1)) == []
    assert world.actual() == {}
    assert world.difference() == (set(), {A})


def test_a_replaced_socket_is_registered_with_the_new_generation() -> None:
    """Test_Run_Positive_ReRegister; behaviours 19 and 20."""
    world = given(*registered())

    assert take(world, appeared(2)) == [Send(A, appeared(2))]
    assert (world.actual(), world.difference()) == ({}, (set(), {A}))
    assert take(world, ClaimReleased(A, 1), claimed(A, 2), PluginRegistered(A, 2)) == [admitted(claimed(A, 2))]
    assert (world.actual(), world.difference()) == ({A: 2}, (set(), set()))


def test_a_socket_that_comes_back_when_its_actor_ends_gets_another_actor() -> None:
    world = given(*registered(), SocketVanished(A, 1), appeared(2), ClaimReleased(A, 1))

    assert take(world, RegistrationEnded(A, crashed=False)) == [StartRegistration(appeared(2))]


# --- one name ---------------------------------------------------------------------------------------------------------


def test_a_second_plugin_of_a_name_waits_until_the_first_is_registered() -> None:
    """Behaviour 21: operations are ordered per (type, name), so the second plugin is validated after the first one."""
    world = given(appeared(1, A), appeared(2, B), claimed(A, 1))

    assert take(world, claimed(B, 2)) == []
    assert take(world, PluginRegistered(A, 1)) == [admitted(claimed(B, 2))]


def test_plugins_of_other_names_do_not_wait_for_each_other() -> None:
    """TestOperationExecutor_RegisterPlugin_ConcurrentRegisterPlugin, as far as the world decides it."""
    world = given(appeared(1, A), appeared(2, B))

    assert take(world, claimed(A, 1, INFO), claimed(B, 2, OTHER)) == [
        admitted(claimed(A, 1, INFO)),
        admitted(claimed(B, 2, OTHER)),
    ]


def test_a_name_is_unregistered_before_another_socket_takes_it() -> None:
    """Behaviours 19 and 21: unregister before register for one (type, name)."""
    world = given(*registered(A, 1), SocketVanished(A, 1), appeared(2, B))

    assert take(world, claimed(B, 2)) == []
    assert take(world, ClaimReleased(A, 1)) == [admitted(claimed(B, 2))]


ELSEWHERE = attrs.evolve(INFO, endpoint="/reg/.elsewhere.sock")


def test_a_plugin_that_is_admitted_is_told_once_that_others_with_other_endpoints_wait_for_the_name() -> None:
    """One with the same endpoint can do no better. The next one is told as it is admitted."""
    world = given(*(appeared(number, path) for number, path in enumerate((A, B, C, "/reg/d.sock"), 1)), claimed(A, 1))

    assert take(world, claimed(B, 2)) == []
    assert take(world, claimed(C, 3, ELSEWHERE)) == [Send(A, NameWanted())]
    assert take(world, claimed("/reg/d.sock", 4, ELSEWHERE)) == []
    assert take(world, ClaimReleased(A, 1)) == [Send(B, Admitted(claimed(B, 2), HANDLER, wanted=True))]
    # Those that are left have one endpoint.
    assert take(world, ClaimReleased(B, 2)) == [admitted(claimed(C, 3, ELSEWHERE))]


def test_a_plugin_that_is_admitted_is_told_that_one_with_another_endpoint_leaves() -> None:
    """The handler deregisters the one that leaves once it has registered the other, or has failed to."""
    world = given(*registered(A, 1), *registered(B, 2, ELSEWHERE), appeared(3, C), claimed(C, 3))

    leaving = [Send(A, SocketVanished(A, 1))]
    assert take(world, SocketVanished(A, 1)) == leaving
    notified, vanished = take(world, SocketVanished(B, 2))[-2:]
    assert (notified, vanished) == (Send(C, NameWanted()), Send(B, SocketVanished(B, 2)))


def test_a_claim_that_was_withdrawn_before_its_answer_is_not_answered_later() -> None:
    """Otherwise a plugin would block its name without having it."""
    world = given(*registered(A, 1), appeared(2, B), appeared(3, C), SocketVanished(A, 1), claimed(B, 2), claimed(C, 3))

    assert take(world, ClaimReleased(B, 2), ClaimReleased(A, 1)) == [admitted(claimed(C, 3))]


@pytest.mark.parametrize("policy", list(InstancePolicy))
def test_removing_one_of_two_instances_keeps_the_other(policy: InstancePolicy) -> None:
    """Behaviour 37, fault 78; TestPluginRegistrationSameName: sockets of one name are all kept."""
    world = given(*registered(A, 1), *registered(B, 2), policy=policy)

    take(world, SocketVanished(A, 1), ClaimReleased(A, 1))

    assert world.actual() == ({} if policy is InstancePolicy.REJECT else {B: 2})


def test_the_newest_instance_is_active_and_the_older_is_its_fallback() -> None:
    """Behaviour 37, NEWEST; TestAddSameName: the newest wins, the older is the fallback."""
    world = given(*registered(A, 1))

    assert take(world, *registered(B, 2))[-1:] == [role(A, 1, active=False)]
    assert take(world, SocketVanished(B, 2)) == [role(A, 1, active=True), Send(B, SocketVanished(B, 2))]


def test_the_highest_version_is_active_and_the_newest_among_equals() -> None:
    """Behaviour 37, HIGHEST_VERSION; invalid version numbers rank below all valid ones."""
    world = given(policy=InstancePolicy.HIGHEST_VERSION)
    sockets = {A: "1.2.0", B: "1.10.0", C: "v1.9.0", "/reg/d": "1.10.0", "/reg/e": "nonsense"}

    shown = []
    for generation, (path, version) in enumerate(sockets.items(), 1):
        shown.append(take(world, *registered(path, generation, PluginInfo("T", "x", path, (version,))))[2:])

    assert shown == [
        [],
        [role(A, 1, active=False)],
        [role(C, 3, active=False)],
        [role(B, 2, active=False)],
        [role("/reg/e", 5, active=False)],
    ]


def test_all_instances_are_active_if_the_type_has_no_preference() -> None:
    """Behaviour 37, ALL."""
    world = given(*registered(A, 1), policy=InstancePolicy.ALL)

    assert [effect for effect in take(world, *registered(B, 2)) if isinstance(effect, Show)] == []


def test_a_second_plugin_of_a_name_is_refused_and_notified_when_the_name_is_free() -> None:
    """Behaviour 37, REJECT."""
    world = given(*registered(A, 1), appeared(2, B), policy=InstancePolicy.REJECT)

    reason = "T 'x' is registered already, by the socket /reg/a.sock"
    assert take(world, claimed(B, 2)) == [Send(B, ClaimRefused(claimed(B, 2), reason))]
    assert take(world, SocketVanished(A, 1), ClaimReleased(A, 1))[1:] == [Send(B, NameFreed())]
    assert take(world, claimed(B, 2)) == [admitted(claimed(B, 2))]


@pytest.mark.parametrize("policy", [policy for policy in InstancePolicy if policy is not InstancePolicy.REJECT])
def test_a_name_has_a_limit_of_instances_and_one_more_waits_until_one_goes(policy: InstancePolicy) -> None:
    """Behaviour 37, fault 48: one that is leaving keeps its place until it is deregistered."""
    world = World((attrs.evolve(ADDED, policy=policy),), max_instances=2)
    take(world, *registered(A, 1), *registered(B, 2), appeared(3, C))

    reason = "T 'x' has 2 instances already, the limit (raise it with --max-instances)"
    assert take(world, claimed(C, 3)) == [Send(C, ClaimRefused(claimed(C, 3), reason))]
    assert Send(C, NameFreed()) not in take(world, SocketVanished(A, 1))
    assert Send(C, NameFreed()) in take(world, ClaimReleased(A, 1))
    assert take(world, claimed(C, 3)) == [admitted(claimed(C, 3))]


def test_a_name_is_free_when_its_actor_ends_without_a_release() -> None:
    """The world is level-triggered: the socket is still there, so another actor registers it again."""
    world = given(*registered(A, 1), policy=InstancePolicy.REJECT)

    assert take(world, RegistrationEnded(A, crashed=False)) == [StartRegistration(appeared(1))]
    assert world.actual() == {}
    assert take(world, claimed()) == [admitted(claimed())]


def test_a_standby_instance_that_registers_again_counts_as_active() -> None:
    """Behaviour 37: the view shows it as standby in the same generation, and must be corrected."""
    world = given(*registered(A, 1), *registered(B, 2))

    assert take(world, ClaimReleased(A, 1)) == [role(A, 1, active=True)]
    assert take(world, claimed(A, 1), PluginRegistered(A, 1)) == [admitted(claimed(A, 1)), role(B, 2, active=False)]


# --- handlers ---------------------------------------------------------------------------------------------------------

NO_HANDLER = "RegisterPlugin error -- no handler registered for plugin type: T at socket /reg/a.sock"


def test_a_plugin_without_a_handler_is_refused_and_tried_when_its_handler_is_added() -> None:
    """Behaviour 29, fault 74, with the message of the reference."""
    world = World()

    assert take(world, appeared(1), claimed())[1:] == [
        Send(A, NoHandler(claimed(), NO_HANDLER, "no handler registered for plugin type: T"))
    ]
    assert take(world, HandlerAdded("U", HANDLER, InstancePolicy.ALL)) == [Show(HandlersChanged(("U",)))]
    assert take(world, ADDED) == [Show(HandlersChanged(("T", "U"))), Send(A, HandlerAvailable("T"))]
    assert take(world, claimed()) == [admitted(claimed())]


@pytest.mark.parametrize("news", [appeared(2), SocketVanished(A, 1)], ids=["newer", "gone"])
def test_a_plugin_without_a_handler_that_is_superseded_is_not_notified(news: ReconcilerMessage) -> None:
    world = World()
    take(world, appeared(1), claimed(), news)

    assert take(world, ADDED) == [Show(HandlersChanged(("T",)))]


def test_a_removed_handler_is_withdrawn_from_its_plugins_and_retires_after_the_last() -> None:
    world = given(*registered(A, 1), appeared(2, B), claimed(B, 2))

    withdrawn = HandlerWithdrawn("T")
    assert take(world, HandlerRemoved("T")) == [Show(HandlersChanged(())), Send(A, withdrawn), Send(B, withdrawn)]
    assert world.actual() == {}
    assert take(world, ClaimReleased(A, 1)) == []
    assert take(world, ClaimReleased(B, 2)) == [HandlerRetired("T", HANDLER)]


def test_a_removed_handler_without_plugins_retires_at_once_and_an_unknown_one_is_ignored() -> None:
    world = given()

    assert take(world, HandlerRemoved("U")) == []
    assert take(world, HandlerRemoved("T")) == [Show(HandlersChanged(())), HandlerRetired("T", HANDLER)]
    assert take(world, HandlerRemoved("T")) == []


def test_a_new_handler_of_a_type_serves_plugins_that_the_old_one_deregistered() -> None:
    old, new = HANDLER, Nowhere()
    world = given(*registered(A, 1), HandlerRemoved("T"))

    assert take(world, HandlerAdded("T", new, InstancePolicy.ALL)) == [Show(HandlersChanged(("T",)))]
    assert take(world, ClaimReleased(A, 1)) == [HandlerRetired("T", old)]
    assert take(world, claimed()) == [admitted(claimed(), new)]


# --- watchers that restart, entries that are refused ------------------------------------------------------------------


def test_the_first_scan_of_a_restarted_watcher_changes_nothing_but_reports_what_vanished() -> None:
    """Fault 85: no socket that is still there is registered again."""
    world = given(*registered(A, 1), *registered(B, 2, OTHER), appeared(3, C))
    again = attrs.evolve(appeared(1, A), generation=4, first_scan=True)
    changed = attrs.evolve(appeared(5, C), first_scan=True)

    assert take(world, again) == []
    assert take(world, changed) == [Send(C, changed)]
    assert take(world, ScanCompleted("/reg", first=True, paths=frozenset({A, C}))) == [Send(B, SocketVanished(B, 2))]
    assert world.desired() == {A: 1, C: 5}
    assert take(world, SocketVanished(A, 4)) == [Send(A, SocketVanished(A, 1))]


def test_a_socket_that_was_touched_while_no_watcher_ran_is_touched_and_no_other_one() -> None:
    """Behaviour 13, fault 85: its file handle is the same, so it is not registered again."""
    seen = attrs.evolve(appeared(1, A), identity=Identity(1, 1, 1, b"h"))
    world = given(seen, claimed(), PluginRegistered(A, 1))
    again = attrs.evolve(seen, generation=4, first_scan=True, identity=Identity(1, 1, 2, b"h"))

    assert take(world, again) == [Send(A, SocketTouched(A, 1, again.identity))]
    assert take(world, attrs.evolve(again, generation=5)) == []
    other = attrs.evolve(again, generation=6, identity=Identity(1, 1, 2, b"i"))
    assert take(world, other) == [Send(A, other)]
    assert world.desired() == {A: 6}


def test_a_touch_that_was_reported_is_none_when_a_restarted_watcher_reports_the_socket_once_more() -> None:
    """Behaviour 3, fault 85; seed 7320073: the plugin would be tried before its backoff is over."""
    seen = attrs.evolve(appeared(1, A), identity=Identity(1, 1, 1, b"h"))
    identity = Identity(1, 1, 2, b"h")
    touched = SocketTouched(A, 1, identity)
    world = given(seen)
    assert take(world, touched) == [Send(A, touched)]
    assert take(world, attrs.evolve(seen, generation=4, first_scan=True, identity=identity)) == []


def test_the_watcher_is_asked_to_look_where_a_dial_found_another_socket() -> None:
    """Fault 41."""
    world = given(appeared(1, A), attrs.evolve(appeared(2, "/other/b.sock"), root="/other"))

    assert take(world, SocketReplaced("/other/b.sock", 2)) == [Look("/other", LookNow("/other/b.sock"))]
    assert take(world, SocketReplaced(A, 1)) == [Look("/reg", LookNow(A))]


def test_the_watcher_is_not_asked_to_look_where_it_has_found_the_newer_socket_already() -> None:
    """Fault 41: the report of the dial and that of the watcher have crossed."""
    world = given(appeared(1, A), appeared(2, A), appeared(3, B), SocketVanished(B, 3))

    assert take(world, SocketReplaced(A, 1), SocketReplaced(B, 3)) == []


def test_the_first_scan_of_one_root_does_not_affect_another() -> None:
    """Behaviour 1: several roots."""
    world = given(appeared(1, A), attrs.evolve(appeared(2, "/other/b.sock"), root="/other"))

    assert take(world, ScanCompleted("/other", first=True, paths=frozenset())) == [
        Send("/other/b.sock", SocketVanished("/other/b.sock", 2))
    ]


REFUSED = EntryRefused(A, 2, "/reg", "a symbolic link", 0.0)


def parked(entry: EntryRefused) -> Show:
    return Show(
        StateChanged(entry.path, "/reg", entry.generation, StateName.PARKED, NOW, entry.reason, cause=entry.reason)
    )


def gone(generation: int) -> Show:
    return Show(StateChanged(A, "/reg", generation, StateName.GONE, NOW))


def test_a_refused_entry_is_shown_with_its_reason_until_it_is_gone() -> None:
    """Behaviour 7, faults 7 and 8."""
    world = given()

    assert take(world, REFUSED) == [parked(REFUSED)]
    assert world.desired() == {}
    assert take(world, SocketVanished(A, 1)) == []
    assert take(world, SocketVanished(A, 2)) == [gone(2)]


def test_a_refused_entry_that_replaces_a_socket_ends_its_registration() -> None:
    world = given(appeared(1))

    assert take(world, REFUSED) == [Send(A, SocketVanished(A, 1)), parked(REFUSED)]


def test_an_entry_that_is_refused_again_is_not_shown_as_gone_in_between() -> None:
    world = given(REFUSED)
    again = attrs.evolve(REFUSED, generation=3, reason="a hard link")

    assert take(world, again) == [parked(again)]
    assert take(world, ScanCompleted("/reg", first=True, paths=frozenset({A}))) == []
    assert take(world, ScanCompleted("/reg", first=True, paths=frozenset())) == [gone(3)]


def test_a_socket_that_replaces_a_refused_entry_is_registered() -> None:
    world = given(REFUSED)

    assert take(world, appeared(3)) == [gone(2), StartRegistration(appeared(3))]


# --- crashes, retries, stops ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("done", [(), (PluginRegistered(A, 1),)], ids=["admitted", "registered"])
def test_the_successor_of_a_crashed_actor_inherits_its_pending_deregistration(
    done: tuple[ReconcilerMessage, ...],
) -> None:
    """Fault 85 and behaviour 36: no other plugin gets the name before."""
    world = given(appeared(1, A), appeared(2, B), claimed(), *done)

    assert take(world, OWING) == [
        StartRegistration(appeared(1), PendingDeregistration(INFO, 1, HANDLER, registered=bool(done)), CRASH)
    ]
    assert world.actual() == {}
    assert take(world, claimed(B, 2)) == []
    assert take(world, ClaimReleased(A, 1)) == [admitted(claimed(B, 2))]


@pytest.mark.parametrize("is_registered", [False, True])
def test_the_successor_of_an_actor_that_crashed_while_leaving_leaves_too(is_registered: bool) -> None:
    """Seed 4804398: a plugin that was admitted, and not registered, was logged as deregistered."""
    done = registered() if is_registered else (appeared(1, A), claimed())
    world = given(*done, SocketVanished(A, 1))

    assert take(world, OWING) == [
        StartRegistration(appeared(1), PendingDeregistration(INFO, 1, HANDLER, registered=is_registered), CRASH),
        Send(A, SocketVanished(A, 1)),
    ]


def test_the_name_of_an_actor_that_crashed_before_register_is_free_and_nothing_is_deregistered() -> None:
    """Behaviour 36: there is no Deregister without a Register."""
    world = given(appeared(1, A), appeared(2, B), claimed(), claimed(B, 2))
    assert take(world, CRASHED) == [admitted(claimed(B, 2)), StartRegistration(appeared(1), crash=CRASH)]


def test_a_socket_that_vanished_before_its_actor_crashed_is_shown_as_gone() -> None:
    """Fault 85: it has no successor that would report it (seed 1191)."""
    world = given(appeared(1), SocketVanished(A, 1))
    gone = StateChanged(A, appeared(1).root, 1, StateName.GONE, NOW)
    assert take(world, CRASHED) == [Show(gone)]


def test_a_refused_entry_is_still_shown_after_the_actor_of_the_socket_before_it_has_crashed() -> None:
    """Fault 85: the path has an entry, so it is not gone."""
    world = given(appeared(1), REFUSED)
    assert take(world, CRASHED) == []


def test_a_crashed_actor_that_had_claimed_nothing_is_started_again() -> None:
    """Fault 85: its claim no longer waits for an answer."""
    world = given(*registered(B, 1), SocketVanished(B, 1), appeared(2, A), claimed(A, 2))

    assert take(world, CRASHED) == [StartRegistration(appeared(2, A), crash=CRASH)]
    assert take(world, ClaimReleased(B, 1)) == []


def crashes_of(*messages: ReconcilerMessage, world: World, now: float = NOW) -> list[int | None]:
    """Return the number of the crash with which each successor starts."""
    effects = [effect for message in messages for effect in world.handle(message, now)]
    crashes = [effect.crash for effect in effects if isinstance(effect, StartRegistration)]
    return [None if crash is None else crash.count for crash in crashes]


def test_crashes_in_a_row_are_counted_until_a_retry_another_socket_or_a_long_time() -> None:
    """Fault 85."""
    world = given(appeared(1))
    assert crashes_of(CRASHED, CRASHED, CRASHED, world=world) == [1, 2, 3]
    assert crashes_of(RetryAsked(A, Nowhere()), CRASHED, CRASHED, world=world) == [1, 2]
    assert crashes_of(appeared(2), CRASHED, CRASHED, world=world) == [1, 2]
    assert crashes_of(CRASHED, world=world, now=NOW + 3600) == [3]
    assert crashes_of(CRASHED, world=world, now=NOW + 7201) == [1]


def test_what_counts_as_long_is_the_time_after_which_a_life_is_not_short() -> None:
    """Faults 49 and 85: ``Config.stable_after``; where that is 0, a row of crashes has no such end."""
    for stable_after, expected in ((3.0, [1]), (3.5, [2]), (0.0, [2])):
        world = World((ADDED,), lives=Lives(Backoff(), stable_after))
        for message in (appeared(1), CRASHED, claimed(), PluginRegistered(A, 1)):
            world.handle(message, NOW)
        assert crashes_of(CRASHED, world=world, now=NOW + 3.0) == expected


def test_a_crash_of_a_plugin_that_was_registered_for_long_is_the_first_in_a_row() -> None:
    """Fault 85: five crashes within a year do not park a plugin."""
    world = World((ADDED,), lives=Lives(Backoff(), stable_after=10.0))
    world.handle(appeared(1), NOW)
    crashes_of(CRASHED, world=world)
    world.handle(claimed(), NOW)
    world.handle(PluginRegistered(A, 1), NOW + 1)
    assert crashes_of(CRASHED, world=world, now=NOW + 10) == [2]
    for message in (ClaimReleased(A, 1), claimed(), PluginRegistered(A, 1)):
        world.handle(message, NOW + 11)
    assert crashes_of(CRASHED, world=world, now=NOW + 21) == [1]


def test_a_successor_that_always_crashes_while_it_deregisters_is_not_followed_for_ever() -> None:
    """Fault 85: after the fifth crash in a row it deregisters once more; then its claim is released."""
    world = given(*registered(), appeared(2, B))
    effects = [take(world, OWING) for _ in range(5)]
    assert take(world, claimed(B, 2)) == []
    effects += [take(world, OWING) for _ in range(2)]
    pending = PendingDeregistration(INFO, 1, HANDLER, registered=True)
    assert effects[:5] == [[StartRegistration(appeared(1), pending, Crash(n, "Oops"))] for n in range(1, 6)]
    assert effects[5:] == [
        [admitted(claimed(B, 2)), StartRegistration(appeared(1), crash=Crash(6, "Oops"))],
        [StartRegistration(appeared(1), crash=Crash(7, "Oops"))],
    ]


def test_an_actor_that_always_crashes_after_its_socket_vanished_ends() -> None:
    """Fault 85."""
    world = given(*registered(), SocketVanished(A, 1))
    effects = [take(world, OWING) for _ in range(6)]
    assert effects[5] == [Show(StateChanged(A, appeared(1).root, 1, StateName.GONE, NOW))]
    assert take(world, appeared(3)) == [StartRegistration(appeared(3))]


class ReplyTo(Nowhere):
    """The reply address of a caller."""


def test_a_retry_is_answered_by_the_actor_of_the_socket_or_by_the_world() -> None:
    """``plugind retry SOCKET``: what is refused has no actor (behaviour 7), nor has what is not known."""
    link = EntryRefused(B, 2, "/reg", "it is a symbolic link", 0.0)
    world = given(*registered(A, 1), link)
    reply = ReplyTo()

    def retry(path: str) -> list[Effect]:
        return take(world, RetryAsked(path, reply))

    assert retry(A) == [Send(A, TryNow(reply))]
    refused = RetryAnswer(B, tried=False, why="not a plugin: it is a symbolic link; retry does not help")
    assert retry(B) == [AnswerCaller(reply, RetryAnswered((refused,)))]
    assert retry(C) == [AnswerCaller(reply, RetryAnswered(()))]


def test_the_actor_of_a_replaced_socket_does_not_answer_for_what_is_refused_in_its_place() -> None:
    """The actor still deregisters its plugin; a retry of the path is about the link that lies there now."""
    world = given(*registered(A, 1), EntryRefused(A, 2, "/reg", "it is a symbolic link", 0.0))
    reply = ReplyTo()
    refused = RetryAnswer(A, tried=False, why="not a plugin: it is a symbolic link; retry does not help")
    assert take(world, RetryAsked(A, reply)) == [AnswerCaller(reply, RetryAnswered((refused,)))]


def test_a_stop_is_sent_to_all_actors_and_finished_with_the_last() -> None:
    """Behaviour 42: nothing new begins."""
    world = given(*registered(A, 1), appeared(2, B))
    stop = StopAsked()

    assert take(world, stop) == [Send(A, stop), Send(B, stop)]
    assert take(world, appeared(3, C)) == []
    assert take(world, RegistrationEnded(A, crashed=False)) == []
    assert take(world, StopForced()) == [Send(B, StopForced())]
    assert take(world, RegistrationEnded(B, crashed=False)) == [Stopped()]


@pytest.mark.parametrize("stop", [StopAsked(), StopForced()], ids=["asked", "forced"])
def test_a_stop_of_an_empty_world_is_finished_at_once(stop: ReconcilerMessage) -> None:
    world = given()

    assert take(world, stop) == [Stopped()]
    assert take(world, appeared(1)) == []


def test_the_successor_of_an_actor_that_crashed_during_a_stop_is_sent_the_stop() -> None:
    """Faults 85 and 87."""
    stop = StopAsked()
    world = given(*registered(), stop)

    assert take(world, OWING) == [
        StartRegistration(appeared(1), PendingDeregistration(INFO, 1, HANDLER, registered=True), CRASH),
        Send(A, stop),
    ]


def test_a_report_request_repeats_roles_and_asks_the_actors_for_their_states() -> None:
    """Fault 85: the status actor lost its view."""
    refused = attrs.evolve(REFUSED, path=C)
    world = given(*registered(A, 1), *registered(B, 2), refused)

    assert take(world, ReportAsked()) == [
        Show(HandlersChanged(("T",))),
        parked(refused),
        Send(A, ReportAsked()),
        Send(B, ReportAsked()),
        role(A, 1, active=False),
    ]
