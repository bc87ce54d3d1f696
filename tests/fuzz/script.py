"""Random scripts for a node in memory: what happens, when, and which faults it takes part of.

A script is a list of :class:`Event`, drawn from one seed. Each event carries a seed of its own, from which its details
follow once it is played: so an event that is taken out changes nothing about the others, and a script can be shrunk.
"""

from __future__ import annotations

import enum
import random
from collections.abc import Collection
from typing import Final

import attrs

from plugind.actors.simulation.node import DAEMON_UID, OVERFLOW_UID

#: The type and the names of the plugins in a script, their sockets, and the directories in which these are.
TYPE: Final = "Colour"
NAMES: Final = ("red", "green", "blue")
SOCKETS: Final = ("a.sock", "b.sock", "c.sock", "d.sock", "sub/e.sock", "sub/f.sock", "sub/deep/g.sock")
DIRECTORIES: Final = ("sub", "sub/deep")
#: The users of plugins: root and the daemon, others who are trusted, and some who are not.
PRIVILEGED: Final = (0, DAEMON_UID)
TRUSTED: Final = (2001, 2002)
UNTRUSTED: Final = (6666, OVERFLOW_UID)
#: Where endpoints may be besides the root, the endpoints there, which plugins share and which come and go, and others.
DRIVERS: Final = "/drivers"
ENDPOINTS: Final = tuple(f"{DRIVERS}/{name}.sock" for name in ("one", "two"))
ELSEWHERE: Final = ("/elsewhere/three.sock", "/proc/1/root/drivers/one.sock", "/drivers")


class Fault(enum.Enum):
    """What may go wrong in a script; the names are those of ``python -m tests.fuzz --faults``."""

    #: Plugins that fail, hang, answer late, lie, die during a call, or leave a socket without a listener.
    PLUGINS = "plugins"
    #: Connections that break, silence, full backlogs, denied or exhausted dials, bytes that trickle.
    NETWORK = "network"
    #: Renames, unlinked sockets, links, clutter, directories and the root itself removed.
    FILES = "files"
    #: Events that are dropped or delayed, overflows, watches that end or that cannot be added.
    EVENTS = "events"
    #: Scans and looks that fail.
    SCANS = "scans"
    #: Handlers that fail, hang or answer late, and that are removed and added.
    HANDLERS = "handlers"
    #: An exception in a run of an actor: watcher, reconciler, registration, status, handler.
    CRASHES = "crashes"
    #: The daemon is stopped or killed, and started again.
    RESTARTS = "restarts"
    #: The disks of leases are full or slow, or lose what is on them.
    DISK = "disk"


class Act(enum.Enum):
    """What an event does."""

    PLUG = enum.auto()
    STOP = enum.auto()
    RESTART = enum.auto()
    RETRY = enum.auto()
    TOUCH = enum.auto()
    SENTINEL = enum.auto()
    LISTEN = enum.auto()
    DIE = enum.auto()
    RESET = enum.auto()
    HALF_CLOSE = enum.auto()
    ACCEPT = enum.auto()
    TRICKLE = enum.auto()
    EXHAUST = enum.auto()
    RENAME = enum.auto()
    UNLINK = enum.auto()
    CLUTTER = enum.auto()
    REMOVE_DIRECTORY = enum.auto()
    REMOVE_ROOT = enum.auto()
    DROP_EVENTS = enum.auto()
    DELAY_EVENTS = enum.auto()
    OVERFLOW = enum.auto()
    LOSE_WATCH = enum.auto()
    WATCHES_OUT = enum.auto()
    SCAN_ERROR = enum.auto()
    LOOK_ERROR = enum.auto()
    BEHAVE = enum.auto()
    TOGGLE_HANDLER = enum.auto()
    CRASH = enum.auto()
    RESTART_DAEMON = enum.auto()
    START_AMID = enum.auto()
    REPLACE_AT_SCAN = enum.auto()
    REPLACE_AT_DIAL = enum.auto()
    CHANGE_MODE = enum.auto()
    CHANGE_USER = enum.auto()
    CHANGE_ENDPOINT = enum.auto()
    CRASH_BOTH = enum.auto()
    CALL = enum.auto()
    DEVICES = enum.auto()
    GIVE_DIRECTORY = enum.auto()
    OFFER = enum.auto()
    LEASE = enum.auto()
    KILL_AMID_LEASE = enum.auto()
    HEALTH = enum.auto()
    DRIVER = enum.auto()


#: How often each act comes, in comparison, and the fault that it is part of; None is the life of a node without any.
_WEIGHTS: Final[dict[Act, tuple[int, Fault | None]]] = {
    Act.PLUG: (24, None),
    Act.STOP: (8, None),
    Act.RESTART: (10, None),
    Act.RETRY: (4, None),
    Act.TOUCH: (4, None),
    Act.SENTINEL: (8, None),
    Act.LISTEN: (4, None),
    Act.DIE: (6, Fault.PLUGINS),
    Act.RESET: (4, Fault.NETWORK),
    Act.HALF_CLOSE: (2, Fault.NETWORK),
    Act.ACCEPT: (4, Fault.NETWORK),
    Act.TRICKLE: (2, Fault.NETWORK),
    Act.EXHAUST: (2, Fault.NETWORK),
    Act.RENAME: (5, Fault.FILES),
    Act.UNLINK: (3, Fault.FILES),
    Act.CLUTTER: (3, Fault.FILES),
    Act.REMOVE_DIRECTORY: (2, Fault.FILES),
    Act.REMOVE_ROOT: (1, Fault.FILES),
    Act.DROP_EVENTS: (4, Fault.EVENTS),
    Act.DELAY_EVENTS: (4, Fault.EVENTS),
    Act.OVERFLOW: (3, Fault.EVENTS),
    Act.LOSE_WATCH: (2, Fault.EVENTS),
    Act.WATCHES_OUT: (1, Fault.EVENTS),
    Act.SCAN_ERROR: (2, Fault.SCANS),
    Act.LOOK_ERROR: (2, Fault.SCANS),
    Act.BEHAVE: (12, Fault.HANDLERS),
    Act.TOGGLE_HANDLER: (2, Fault.HANDLERS),
    Act.CRASH: (5, Fault.CRASHES),
    Act.RESTART_DAEMON: (2, Fault.RESTARTS),
}
#: Races: what they do happens at the next scan or dial. They are part of every script, whatever its faults, one for so
#: many other events. They are drawn apart from these and numbered after them, so that a script without its races is
#: what it always was.
_RACES: Final = (Act.REPLACE_AT_SCAN, Act.REPLACE_AT_DIAL, Act.REPLACE_AT_DIAL)
_EVENTS_PER_RACE: Final = 10
#: Changes of the users of plugins are part of every script too, one for so many other events; they are drawn apart from
#: all others, and numbered after them.
_EVENTS_PER_CHANGE: Final = 20
#: Likewise, where files may be changed: modes and owners of directories, numbered after those.
_EVENTS_PER_MODE: Final = 25
#: So are changes of endpoints, which are numbered after those.
_EVENTS_PER_ENDPOINT: Final = 10
#: Where actors crash, the reconciler and a registration crash in the same instant now and then; numbered last of all.
_EVENTS_PER_DOUBLE_CRASH: Final = 40
#: Calls of Register, in the scripts that have a directory for them, one for so many other events; numbered after those.
_EVENTS_PER_CALL: Final = 3
#: The seeds of these scripts leave one of these remainders.
_CALLS: Final = (16, (7, 11))
#: What device plugins list is part of every script, too; numbered after all others.
_EVENTS_PER_DEVICES: Final = 5
#: Where files may be changed, directories are given to trusted users, and back; numbered after those.
_EVENTS_PER_GIFT: Final = 20
#: What happens to device plugins whose lists are followed, in the scripts that have some; numbered after those.
_EVENTS_PER_OFFER: Final = 4
#: The seeds of these scripts leave this remainder.
_OFFERS: Final = (4, 2)
#: What happens to leases, in the scripts that have some; and kills of the daemon at a step of a lease, where it may be
#: restarted. Numbered after those.
_EVENTS_PER_LEASE: Final = 2
_EVENTS_PER_KILL: Final = 40
#: The seeds of these scripts leave one of these remainders.
_LEASES: Final = (8, (4, 5))
#: What happens to the health of device plugins whose lists are followed; numbered after those.
_EVENTS_PER_HEALTH: Final = 10
#: What happens to CSI or DRA drivers, in the scripts that have some; numbered after those.
_EVENTS_PER_DRIVER: Final = 3
#: The seeds of the scripts with CSI drivers, and of those with DRA drivers, leave one of these remainders.
_CSI: Final = (32, (3, 11))
_DRA: Final = (32, (23, 31))
#: Seconds between events: mostly none, so that much happens at once, and now and then enough for a backoff.
_PAUSES: Final = (0.0, 0.0, 0.0, 0.0, 0.001, 0.01, 0.1, 0.6, 1.0, 2.5, 7.0)


@attrs.frozen
class Event:
    """One thing that happens; its details follow from ``seed``."""

    #: Its place in the whole script, by which ``--only`` names it.
    number: int
    act: Act
    seed: int
    #: Seconds after it.
    pause: float

    def __str__(self) -> str:
        return f"{self.number}:{self.act.name.lower()}"


def choose(seed: int, faults: Collection[Fault]) -> frozenset[Fault]:
    """Return the faults that the script of ``seed`` has of these: most scripts all of them, every fourth a few.

    Where everything goes wrong at once, a node may be late for any reason; with few faults every delay is a violation.
    """
    if seed // 4 % 4:
        return frozenset(faults)
    chance = random.Random(f"plugind faults {seed}")
    return frozenset(fault for fault in Fault if chance.random() < 0.4 and fault in faults)


def write(seed: int, events: int, faults: Collection[Fault]) -> tuple[Event, ...]:
    """Return the script of ``seed``: so many ``events`` and their races, with no other ``faults`` than these."""
    # A text as the seed is hashed by the random module itself: the same in every process.
    chance = random.Random(f"plugind script {seed}")
    acts = [act for act, (_, fault) in _WEIGHTS.items() if fault is None or fault in faults]
    weights = [_WEIGHTS[act][0] for act in acts]
    drawn = chance.choices(acts, weights, k=events)
    script = [Event(number, act, chance.getrandbits(32), chance.choice(_PAUSES)) for number, act in enumerate(drawn)]
    changed = _with_changes(Act.CHANGE_USER, seed, _users(events), _races(seed, script))
    if Fault.FILES in faults:
        changed = _with_changes(Act.CHANGE_MODE, seed, _modes(events), changed)
    changed = _with_changes(Act.CHANGE_ENDPOINT, seed, _endpoints(events), changed)
    if Fault.CRASHES in faults:
        changed = _with_changes(Act.CRASH_BOTH, seed, _double_crashes(events), changed)
    if has_calls(seed):
        changed = _with_changes(Act.CALL, seed, _calls(events), changed)
    changed = _with_changes(Act.DEVICES, seed, _devices(events), changed)
    if Fault.FILES in faults:
        changed = _with_changes(Act.GIVE_DIRECTORY, seed, _gifts(events), changed)
    if has_offers(seed):
        changed = _with_changes(Act.OFFER, seed, _offers(events), changed)
    if has_leases(seed):
        changed = _with_changes(Act.LEASE, seed, _leases(events), changed)
        if Fault.RESTARTS in faults:
            changed = _with_changes(Act.KILL_AMID_LEASE, seed, _kills(events), changed)
    if has_offers(seed):
        changed = _with_changes(Act.HEALTH, seed, _healths(events), changed)
    if has_csi_drivers(seed) or has_dra_drivers(seed):
        changed = _with_changes(Act.DRIVER, seed, _drivers(events), changed)
    return tuple(changed)


def has_calls(seed: int) -> bool:
    """Whether the script of ``seed`` has calls of Register."""
    divisor, remainders = _CALLS
    return seed % divisor in remainders


def has_offers(seed: int) -> bool:
    """Whether the script of ``seed`` has device plugins whose lists are followed."""
    divisor, remainder = _OFFERS
    return seed % divisor == remainder


def has_leases(seed: int) -> bool:
    """Whether the script of ``seed`` has device plugins whose devices are leased."""
    divisor, remainders = _LEASES
    return seed % divisor in remainders


def has_csi_drivers(seed: int) -> bool:
    """Whether the script of ``seed`` has CSI drivers that are consumed."""
    divisor, remainders = _CSI
    return seed % divisor in remainders


def has_dra_drivers(seed: int) -> bool:
    """Whether the script of ``seed`` has DRA drivers that are consumed."""
    divisor, remainders = _DRA
    return seed % divisor in remainders


def numbers(events: int) -> range:
    """Return the numbers of a script of so many ``events``, those of its races and of all changes included."""
    return range(_drivers(events).stop)


def _users(events: int) -> range:
    return range(_races_end(events), _races_end(events) + events // _EVENTS_PER_CHANGE)


def _modes(events: int) -> range:
    return range(_users(events).stop, _users(events).stop + events // _EVENTS_PER_MODE)


def _endpoints(events: int) -> range:
    return range(_modes(events).stop, _modes(events).stop + events // _EVENTS_PER_ENDPOINT)


def _double_crashes(events: int) -> range:
    return range(_endpoints(events).stop, _endpoints(events).stop + events // _EVENTS_PER_DOUBLE_CRASH)


def _calls(events: int) -> range:
    return range(_double_crashes(events).stop, _double_crashes(events).stop + events // _EVENTS_PER_CALL)


def _devices(events: int) -> range:
    return range(_calls(events).stop, _calls(events).stop + events // _EVENTS_PER_DEVICES)


def _gifts(events: int) -> range:
    return range(_devices(events).stop, _devices(events).stop + events // _EVENTS_PER_GIFT)


def _offers(events: int) -> range:
    return range(_gifts(events).stop, _gifts(events).stop + events // _EVENTS_PER_OFFER)


def _leases(events: int) -> range:
    return range(_offers(events).stop, _offers(events).stop + events // _EVENTS_PER_LEASE)


def _kills(events: int) -> range:
    return range(_leases(events).stop, _leases(events).stop + events // _EVENTS_PER_KILL)


def _healths(events: int) -> range:
    return range(_kills(events).stop, _kills(events).stop + events // _EVENTS_PER_HEALTH)


def _drivers(events: int) -> range:
    return range(_healths(events).stop, _healths(events).stop + events // _EVENTS_PER_DRIVER)


def _races_end(events: int) -> int:
    return events + 1 + events // _EVENTS_PER_RACE


def _races(seed: int, script: list[Event]) -> list[Event]:
    """Return ``script`` with races in it; the first comes before all else, when the node has not started yet."""
    chance = random.Random(f"plugind races {seed}")
    with_races = [Event(len(script), Act.START_AMID, chance.getrandbits(32), 0.0), *script]
    for number in range(len(script) + 1, _races_end(len(script))):
        race = Event(number, chance.choice(_RACES), chance.getrandbits(32), 0.0)
        with_races.insert(chance.randrange(1, len(with_races) + 1), race)
    return with_races


#: What the changes are drawn from, besides the seed.
_DRAWN: Final = {
    Act.CHANGE_USER: "users",
    Act.CHANGE_MODE: "modes",
    Act.CHANGE_ENDPOINT: "endpoints",
    Act.CRASH_BOTH: "double crashes",
    Act.CALL: "calls",
    Act.DEVICES: "devices",
    Act.GIVE_DIRECTORY: "gifts",
    Act.OFFER: "offers",
    Act.LEASE: "leases",
    Act.KILL_AMID_LEASE: "kills amid leases",
    Act.HEALTH: "health",
    Act.DRIVER: "drivers",
}


def _with_changes(act: Act, seed: int, numbers: range, script: list[Event]) -> list[Event]:
    """Return ``script`` with changes in it, after its first event, which comes before the node starts."""
    chance = random.Random(f"plugind {_DRAWN[act]} {seed}")
    changed = list(script)
    for number in numbers:
        change = Event(number, act, chance.getrandbits(32), 0.0)
        changed.insert(chance.randrange(1, len(changed) + 1), change)
    return changed
