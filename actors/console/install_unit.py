"""``plugind install-unit``: the systemd service, printed or written to a directory for units."""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import sys
from collections.abc import Mapping
from typing import Final

from ...protocol.text import encodable, escaped
from ..io.replacing import replace_file
from .ending import EXIT_CONFIG, EXIT_OK, CommandError, say
from .status_socket import UNIT, UNIT_DIRECTORIES, find_unit
from .unit_files import HIDDEN, drop_ins, files, quoted

#: The directory of an administrator's units.
DIRECTORY: Final = UNIT_DIRECTORIES[0]
#: Where a package has its unit, and its drop-ins.
PACKAGED: Final = UNIT_DIRECTORIES[1:]
SHARED: Final = "/usr/share/plugind"
#: The longest file that is compared with the new text; a longer one differs.
_MOST: Final = 1024 * 1024

_HELPS: Final = {
    "device-plugins": "let it serve Register calls in /var/lib/kubelet/device-plugins",
    "devices": "let it lease device nodes of this machine, which need no plugin",
    "leases": "let it lease devices to other users and to containers",
    "metrics": "let it serve metrics over TCP to this machine",
    "other-users": "let it connect to plugins of other users than root, and give the status socket to a group",
}

_EPILOG: Final = """examples:
  plugind install-unit --print
  plugind install-unit --device-plugins --leases
  systemctl daemon-reload && systemctl enable --now plugind

If a package has installed the unit, only the drop-ins that you name are written, as links to those of the package.

Options of the daemon are in /etc/default/plugind: PLUGIND_OPTIONS="--device-plugins --lease-group video".
docs/operations.md says what the unit permits, and what each of its drop-ins adds.

exit codes: 0 written, or as it should be; 1 a file was changed or cannot be written; 2 wrong usage;
78 the service could not run this program"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Complete the parser of ``plugind install-unit``."""
    parser.description = "Write the files of the systemd service, or print them; nothing is enabled or started."
    parser.epilog = _EPILOG
    parser.add_argument("--print", action="store_true", help="print the files instead of writing them")
    parser.add_argument(
        "--directory",
        default=DIRECTORY,
        metavar="DIR",
        help="the directory for units to write to (default: %(default)s)",
    )
    parser.add_argument(
        "--command", dest="program", metavar="PATH", help="the plugind that the service runs (default: this one)"
    )
    parser.add_argument("--force", action="store_true", help="replace files that were changed")
    for name in drop_ins():
        parser.add_argument(f"--{name}", dest="drop_ins", action="append_const", const=name, help=_HELPS[name])


def run(args: argparse.Namespace) -> int:
    """Print or write the files; return the exit code.

    Raises:
      CommandError: if the service could not run the program, a package has the unit and no drop-in is named, a file was
        changed, or one cannot be written.
    """
    named = set(args.drop_ins or ())
    packaged = None if args.print or args.directory != DIRECTORY or args.program is not None else find_unit(PACKAGED)
    if packaged is not None and not named:
        raise CommandError(
            f"a package has installed the unit {packaged}: name the drop-ins that it needs, such as --leases, or"
            " another plugind with --command to write a unit that is used instead"
        )
    command = "" if packaged is not None else _command(args.program)
    texts = files(command, [name for name in drop_ins() if name in named])
    if packaged is not None:
        del texts[UNIT]
    if args.print:
        say("\n".join(f"# {os.path.join(args.directory, name)}\n{text}" for name, text in texts.items()))
        return EXIT_OK
    try:
        _install(args.directory, texts, force=args.force, links_to=None if packaged is None else SHARED)
    except OSError as error:
        place = escaped(encodable(str(error.filename or args.directory)))
        raise CommandError(f"cannot write {place}: {error.strerror}") from error
    if packaged is not None:
        say("have them used: systemctl daemon-reload && systemctl restart plugind\n")
    return EXIT_OK


def _command(program: str | None) -> str:
    """Return the command with which the service starts plugind.

    Raises:
      CommandError: if the unit hides the program from the service.
    """
    if program is None:
        started = shutil.which(sys.argv[0]) if os.path.basename(sys.argv[0]) == "plugind" else None
        words = [sys.executable, "-P", "-m", "plugind"] if started is None else [os.path.abspath(started)]
    else:
        words = [os.path.abspath(program)]
    for hidden in HIDDEN:
        if f"{words[0]}/".startswith(f"{hidden}/"):
            raise CommandError(
                f"the service could not run {escaped(words[0])}, since it sees no files in {hidden}: install plugind"
                " elsewhere, in /opt for example, or name another one with --command",
                EXIT_CONFIG,
            )
    return " ".join(map(quoted, words))


def _install(directory: str, texts: Mapping[str, str], *, force: bool, links_to: str | None) -> None:
    """Write the texts, or links to the files of this name in ``links_to`` that are there."""
    targets = {} if links_to is None else {name: os.path.join(links_to, name) for name in texts}
    targets = {name: target for name, target in targets.items() if os.path.exists(target)}
    wanted = {name: _link_to(targets[name]) if name in targets else text for name, text in texts.items()}
    present = {name: _read(os.path.join(directory, name)) for name in texts}
    changed = [os.path.join(directory, name) for name, text in wanted.items() if present[name] not in (None, text)]
    if changed and not force:
        raise CommandError(
            f"{', '.join(map(escaped, changed))} is not what would be written: compare it with --print, and replace it"
            " with --force; nothing was written"
        )
    for name, text in wanted.items():
        path = os.path.join(directory, name)
        if present[name] == text:
            say(f"{escaped(path)} is as it should be\n")
            continue
        _write(path, text, targets.get(name))
        say(f"{escaped(path)} was {'written' if present[name] is None else 'replaced'}\n")


def _read(path: str) -> str | None:
    """Return the contents of the file at ``path``; None if there is none."""
    if os.path.islink(path):
        return _link_to(os.readlink(path))
    try:
        with open(path, encoding="utf-8", errors="surrogateescape", newline="") as file:
            return file.read(_MOST)
    except FileNotFoundError:
        return None


def _link_to(target: str) -> str:
    """Return what stands for a link where texts are compared."""
    return f"a link to {target}"


def _write(path: str, text: str, target: str | None) -> None:
    """Write a file atomically, or a link to ``target``."""
    directory, name = os.path.split(path)
    with contextlib.suppress(FileExistsError):
        os.mkdir(directory, 0o755)
    if target is not None:
        temporary = os.path.join(directory, f".{name}.new")
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        os.symlink(target, temporary)
        os.replace(temporary, path)
        return
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        replace_file(descriptor, name, text.encode(), mode=0o644, temporary=f".{name}.new")
    finally:
        os.close(descriptor)
