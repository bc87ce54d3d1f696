"""The kinds of hostile plugins, by name; ``--kind`` names one."""

from __future__ import annotations

from collections.abc import Callable

from plugind.benchmarks.peers.hostile import floods
from plugind.benchmarks.peers.hostile.callers import Callers
from plugind.benchmarks.peers.hostile.closed import (
    Closing,
    FullBacklog,
    Garbage,
    Goaway,
    NoWindow,
    OddNames,
    Silent,
    Trickle,
    Unlistened,
)
from plugind.benchmarks.peers.hostile.csi_endpoints import (
    EndlessHeadersDriver,
    HangingDriver,
    HugeDriver,
    NonsenseDriver,
    RefusingDriver,
)
from plugind.benchmarks.peers.hostile.dra_endpoints import HostileHealth
from plugind.benchmarks.peers.hostile.endpoints import (
    EndingStreams,
    GoingAway,
    ListFlood,
    ManyDevices,
    ManyNodes,
    NoOptions,
)
from plugind.benchmarks.peers.hostile.entries import Directories, Files, MovingDirectories, Rebind, Renames, Symlinks
from plugind.benchmarks.peers.hostile.flooders import Flooder
from plugind.benchmarks.peers.hostile.server import Kind
from plugind.benchmarks.peers.hostile.speaking import (
    Chmod,
    CrashLoop,
    HangNotify,
    Invalid,
    ManyVersions,
    NewNames,
    OneName,
    OwnNames,
)

#: All kinds by name.
KINDS: dict[str, Callable[[], Kind]] = {
    "silent": Silent,
    "full-backlog": FullBacklog,
    "tiny-data": lambda: Flooder("Answers with 4 MB in DATA frames of one byte.", floods.tiny_data),
    "informational": lambda: Flooder("Sends 1xx answers full of Huffman codes.", floods.informational),
    "settings": lambda: Flooder("Sends SETTINGS of 2,730 entries.", floods.settings),
    "pings": lambda: Flooder("Sends PINGs, each of which asks for an answer.", floods.pings),
    "big-info": lambda: Flooder("Answers with a PluginInfo of 4 MiB.", floods.big_info),
    "held-back": lambda: Flooder("Answers with 64 KiB, and holds the end back.", floods.held_back),
    "empty-versions": lambda: Flooder("Answers with 2.1 million empty versions.", floods.empty_versions),
    "many-versions": ManyVersions,
    "one-name": OneName,
    "chmod": Chmod,
    "crash-loop": CrashLoop,
    "symlinks": Symlinks,
    "closing": Closing,
    "unlistened": Unlistened,
    "garbage": Garbage,
    "no-window": NoWindow,
    "goaway": Goaway,
    "trickle": Trickle,
    "odd-names": OddNames,
    "invalid": Invalid,
    "hang-notify": HangNotify,
    "new-names": NewNames,
    "rebind": Rebind,
    "renames": Renames,
    "files": Files,
    "directories": Directories,
    "moving-directories": MovingDirectories,
    "own-names": OwnNames,
    "no-options": NoOptions,
    "many-devices": ManyDevices,
    "ending-streams": EndingStreams,
    "list-flood": ListFlood,
    "many-nodes": ManyNodes,
    "going-away": GoingAway,
    "callers": Callers,
    "csi-hanging": HangingDriver,
    "csi-refusing": RefusingDriver,
    "csi-huge": HugeDriver,
    "csi-nonsense": NonsenseDriver,
    "csi-endless-headers": EndlessHeadersDriver,
    "dra-health": HostileHealth,
}
