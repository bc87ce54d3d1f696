"""What a lease gives, in the words of those that use it: people, processes, systemd and shells, Podman, and Docker.

What the plugins said was checked when it came; see :mod:`.answers`. What a form cannot carry is refused, with the name
of a form that can.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from ..text import escaped
from .values import CDI_KIND, Answer, Lease, Mount, Node

#: The variables that each owner gets: the id of the lease, its devices as ``R=id,id;R2=id``, and the paths of its
#: device nodes as the owner sees them, with a comma between two.
LEASE: Final = "PLUGIND_LEASE"
DEVICES: Final = "PLUGIND_DEVICES"
NODES: Final = "PLUGIND_NODES"

_SHELL_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
#: What systemd lets into no variable, and a line end, which no line has.
_CONTROL: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
#: What means something between double quotes, to sh and to systemd alike.
_SPECIAL: Final = re.compile(r'(["\\$`])')
#: How annotations begin that name CDI devices, to some container engines.
CDI_ANNOTATION: Final = "cdi.k8s.io/"
#: What a shell makes something else of in ``$(plugind allocate ...)``: words are split, and names of files are filled
#: in. A backslash may keep a wildcard from that.
_UNSAFE_WORD: Final = re.compile(r"[\s*?\[\\]")


class FormError(Exception):
    """A lease cannot be said in this form; the text says why, and which one can."""


def useless(lease: Lease, why: object, *, kept: bool) -> str:
    """Return what the asker is told of a lease that cannot be said in its form."""
    return f"{why}; the lease {escaped(lease.id)} was {'kept' if kept else 'released'}"


def not_on_disk(lease: str, why: str) -> str:
    """Return the warning that a lease which was released may come back."""
    return (
        f"warning: {escaped(lease)} is released, which is not on disk yet; it comes back if plugind is killed before"
        f" that: {escaped(why)}"
    )


# --- for a process ----------------------------------------------------------------------------------------------------


def environment(lease: Lease) -> dict[str, str]:
    """Return the variables for a process that uses the devices.

    Raises:
      FormError: if it could not use them: something has another path inside of a container.
    """
    if _answer(lease).needs_container:
        raise FormError(_needs_container(lease))
    given = variables(lease)
    for name, text in given.items():
        if "\0" in text:  # In the id of a device; what a plugin answered has none.
            raise FormError(f"{name} has a NUL, so no program can get it: use -o json")
    return given


def _needs_container(lease: Lease) -> str:
    """Return why only a container can use a lease: the first path that is another one inside."""
    answer = _answer(lease)
    edits: tuple[Mount | Node, ...] = (*answer.nodes, *answer.mounts)
    moved = next((edit for edit in edits if edit.host_path != edit.container_path), None)
    devices = "; ".join(f"{', '.join(ids)} of {resource}" for resource, ids in lease.devices.items())
    what = "" if moved is None else f", in which {moved.host_path} is {moved.container_path}"
    return escaped(f"the answer for {devices} needs a container{what}: use 'podman run' with -o podman, or -o cdi")


def variables(lease: Lease, *, inside: bool = False) -> dict[str, str]:
    """Return the variables of a lease, ``inside`` of a container or on the host: plugind's own, and the plugins'."""
    answer = _answer(lease)
    devices = ";".join(f"{resource}={','.join(ids)}" for resource, ids in lease.devices.items())
    nodes = dict.fromkeys(node.container_path if inside else node.host_path for node in answer.nodes)
    return {**answer.env, LEASE: lease.id, DEVICES: devices, NODES: ",".join(nodes)}


def env_file(lease: Lease) -> str:
    """Return the environment as lines that a shell reads with ``.``, and systemd as an ``EnvironmentFile=``.

    Raises:
      FormError: if a process cannot use the devices, or a variable is none for them.
    """
    return "".join(f"{name}={_quoted(name, text)}\n" for name, text in environment(lease).items())


def _quoted(name: str, text: str) -> str:
    if not _SHELL_NAME.fullmatch(name):
        raise FormError(f"{escaped(name)} is no name of a variable for a shell: use -o json")
    if _CONTROL.search(text):
        raise FormError(f"{name} has a line end or another control character, which systemd refuses: use -o json")
    return '"' + _SPECIAL.sub(r"\\\1", text) + '"'


# --- for containers ---------------------------------------------------------------------------------------------------


def cdi(lease: Lease) -> str:
    """Return the names of the CDI devices that give the lease to a container: ours, and those of the plugins.

    Raises:
      FormError: if it was not made for a container.
    """
    return "".join(f"{name}\n" for name in _cdi_names(lease))


def podman(lease: Lease) -> str:
    """Return the options of ``podman run`` that give the lease to a container.

    Raises:
      FormError: if it was not made for a container, or a shell would change an option.
    """
    options = [("--device", name) for name in _cdi_names(lease)]
    options += [("--annotation", f"{key}={text}") for key, text in _answer(lease).annotations.items()]
    return _line(options)


def docker(lease: Lease) -> str:
    """Return the options of ``docker run`` that give a container what the plugins said, without CDI.

    Annotations are left out: Docker has had them only since 24.0, and they change nothing in a container.

    Raises:
      FormError: if they named CDI devices, or an option would be another one after a shell and Docker have read it.
    """
    answer = _answer(lease)
    if answer.cdi_devices or any(key.startswith(CDI_ANNOTATION) for key in answer.annotations):
        raise FormError("a plugin has named CDI devices, which Docker's plain options cannot give: use -o cdi")
    options = [("--device", _fields(node.host_path, node.container_path, node.permissions)) for node in answer.nodes]
    options += [
        ("-v", _fields(mount.host_path, mount.container_path, "ro" if mount.read_only else "rw"))
        for mount in answer.mounts
    ]
    options += [("-e", f"{name}={text}") for name, text in variables(lease, inside=True).items()]
    return _line(options)


def _cdi_names(lease: Lease) -> Iterator[str]:
    if lease.cdi_name is None:
        raise FormError(f"the lease {escaped(lease.id)} was not made for a container: ask for it with -o cdi")
    yield f"{CDI_KIND}={lease.cdi_name}"
    yield from _answer(lease).cdi_devices


def _fields(host: str, inside: str, rights: str) -> str:
    for path in (host, inside):
        if ":" in path:
            raise FormError(f"{path} has a colon, at which Docker would split it: use -o podman")
    return f"{host}:{inside}:{rights}"


def _line(options: Iterable[tuple[str, str]]) -> str:
    words = []
    for option, word in options:
        if _UNSAFE_WORD.search(word):
            raise FormError(f"a shell would change {option} {escaped(word)}: use -o json")
        words += [option, word]
    return " ".join(words) + "\n"


# --- for people -------------------------------------------------------------------------------------------------------


def text(lease: Lease) -> str:
    """Return what a person wants to know of a lease, in lines."""
    answer = _answer(lease)
    rows = [("lease", lease.id)]
    rows += [("devices", f"{resource}: {', '.join(ids)}") for resource, ids in lease.devices.items()]
    rows += [("node", _place(node, node.permissions)) for node in answer.nodes]
    rows += [("mount", _place(mount, _rights(mount))) for mount in answer.mounts]
    rows += [("variable", f"{name}={word}") for name, word in answer.env.items()]
    rows += [("annotation", f"{key}={word}") for key, word in answer.annotations.items()]
    names = () if lease.cdi_name is None else (f"{CDI_KIND}={lease.cdi_name}",)
    rows += [("cdi", name) for name in (*names, *answer.cdi_devices)]
    return "".join(f"{kind:<12}{escaped(words)}\n" for kind, words in rows)


def _place(edit: Mount | Node, rights: str) -> str:
    path = edit.host_path if edit.host_path == edit.container_path else f"{edit.host_path} -> {edit.container_path}"
    return f"{path} ({rights})"


def _rights(mount: Mount) -> str:
    return "ro" if mount.read_only else "rw"


def _answer(lease: Lease) -> Answer:
    return Answer() if lease.answer is None else lease.answer


#: Says what a lease gives.
Form = Callable[[Lease], str]
#: The forms by their names in ``plugind allocate -o``, but for JSON.
FORMS: Final[Mapping[str, Form]] = {"text": text, "env": env_file, "cdi": cdi, "podman": podman, "docker": docker}

#: What is said where there is no lease, in the forms that stand in the command of a container engine: a device that is
#: not there. With nothing in its place, ``podman run $(plugind allocate ...)`` would start a container without devices.
NO_LEASE: Final[Mapping[str, str]] = {
    "cdi": f"{CDI_KIND}=none\n",
    "podman": f"--device {CDI_KIND}=none\n",
    "docker": "--device /dev/plugind-gave-no-lease\n",
}
