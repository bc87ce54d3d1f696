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
from .unit_files import HIDDEN, drop_ins, files, quoted

#: The directory of an administrator's units.
DIRECTORY: Final = "/etc/systemd/system"
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
      CommandError: if the service could not run the program, a file was changed, or one cannot be written.
    """
    named = set(args.drop_ins or ())
    texts = files(_command(args.program), [name for name in drop_ins() if name in named])
    if args.print:
        say("\n".join(f"# {os.path.join(args.directory, name)}\n{text}" for name, text in texts.items()))
        return EXIT_OK
    try:
        _install(args.directory, texts, force=args.force)
    except OSError as error:
        place = escaped(encodable(str(error.filename or args.directory)))
        raise CommandError(f"cannot write {place}: {error.strerror}") from error
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


def _install(directory: str, texts: Mapping[str, str], *, force: bool) -> None:
    present = {name: _read(os.path.join(directory, name)) for name in texts}
    changed = [os.path.join(directory, name) for name, text in texts.items() if present[name] not in (None, text)]
    if changed and not force:
        raise CommandError(
            f"{', '.join(map(escaped, changed))} is not what would be written: compare it with --print, and replace it"
            " with --force; nothing was written"
        )
    for name, text in texts.items():
        path = os.path.join(directory, name)
        if present[name] == text:
            say(f"{escaped(path)} is as it should be\n")
            continue
        _write(path, text)
        say(f"{escaped(path)} was {'written' if present[name] is None else 'replaced'}\n")


def _read(path: str) -> str | None:
    """Return the contents of the file at ``path``; None if there is none."""
    if os.path.islink(path):
        return f"a link to {os.readlink(path)}"
    try:
        with open(path, encoding="utf-8", errors="surrogateescape", newline="") as file:
            return file.read(_MOST)
    except FileNotFoundError:
        return None


def _write(path: str, text: str) -> None:
    """Write a file atomically."""
    directory, name = os.path.split(path)
    with contextlib.suppress(FileExistsError):
        os.mkdir(directory, 0o755)
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        replace_file(descriptor, name, text.encode(), mode=0o644, temporary=f".{name}.new")
    finally:
        os.close(descriptor)
