"""What a script does to the file system, and to what inotify and scans say of it."""

from __future__ import annotations

import errno
import random

from .plugin_acts import change_plugin
from .script import Act
from .stage import DIRECTORIES, SOCKETS, Stage


def change_files(stage: Stage, act: Act, chance: random.Random) -> None:
    """Clutter comes, or directories go."""
    directory = stage.node.directory
    match act:
        case Act.CLUTTER:
            path = stage.node.path(chance.choice(SOCKETS))
            if directory.exists(path) or not directory.exists(path.rpartition("/")[0]):
                return
            if chance.random() < 0.5:
                directory.write(path)
            else:
                directory.symlink(stage.node.path("a.sock"), path)
        case Act.REMOVE_DIRECTORY:
            _remove(stage, stage.node.path(chance.choice(DIRECTORIES)))
        case _:
            directory.withhold_self_events = chance.random() < 0.2
            _remove(stage, stage.node.root)
            stage.sentinels.all_gone()
            stage.sentinels.excuse(35.0)
            if chance.random() < 0.5:
                directory.mkdir(stage.node.root)
            directory.withhold_self_events = False


def _remove(stage: Stage, path: str) -> None:
    if not stage.node.directory.exists(path):
        return
    stage.node.directory.remove_tree(path)
    for other in [other for other in stage.plugs if other.startswith(path + "/")]:
        stage.plugs.pop(other).crash()


def disturb_events(stage: Stage, act: Act, chance: random.Random) -> None:
    """Events are lost or late, or watches end."""
    directory = stage.node.directory
    match act:
        case Act.DROP_EVENTS:
            if directory.dropping_events:
                directory.resume_events()
            else:
                directory.drop_events()
            # The kernel says when it loses events. Where it does not, a socket that is replaced by one with its
            # inode cannot be told from one whose attributes changed.
            directory.reuse_inodes = not directory.dropping_events
            stage.sentinels.excuse(12.0)
        case Act.DELAY_EVENTS:
            if directory.delaying_events:
                directory.release_events()
                stage.backoff.touched()
            else:
                directory.delay_events()
        case Act.OVERFLOW:
            if directory.dropping_events:
                return
            directory.drop_events()
            # What happens here is lost, and recovered from at once, since the overflow is told.
            stage.sentinels.change()
            change_plugin(stage, Act.RESTART, chance)
            directory.resume_events()
            directory.overflow()
        case Act.LOSE_WATCH:
            path = stage.node.path(chance.choice(("", *DIRECTORIES))).rstrip("/")
            # The kernel never loses the word that a watch ended, unless it says that it lost something.
            if directory.exists(path) and not directory.dropping_events:
                directory.lose_watch(path)
                stage.sentinels.excuse(12.0)
        case _:
            directory.inotify.watches_left = None if directory.inotify.watches_left is not None else chance.randrange(2)
            stage.sentinels.excuse(32.0)


def fail_scans(stage: Stage, act: Act, chance: random.Random) -> None:
    """Scans or looks fail, or no longer do."""
    directory = stage.node.directory
    errors = directory.scan_errors if act is Act.SCAN_ERROR else directory.look_errors
    stage.sentinels.excuse(32.0)
    if errors:
        errors.clear()
        return
    names = ("", *DIRECTORIES) if act is Act.SCAN_ERROR else ("", *DIRECTORIES, *SOCKETS)
    path = stage.node.path(chance.choice(names)).rstrip("/")
    errors[path] = chance.choice((errno.EIO, errno.EACCES, errno.EMFILE))
