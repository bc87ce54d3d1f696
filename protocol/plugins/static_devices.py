"""What the operator says of static devices: which device nodes of the machine make up a resource."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from string import Formatter
from typing import Final

import attrs

from ..checks import copied, refusing_text
from ..errors import ConfigError
from ..text import cut, quoted
from .info import wrong_with_resource

#: How static devices are said to have registered.
SOURCE: Final = "the configuration"
#: How many leases can have one device at once.
MAX_SHARED: Final = 64
#: What a device can be matched by, and what its id can be made of.
ATTRIBUTES: Final = ("subsystem", "name", "vendor", "product", "serial", "interface")

#: The variables that plugind sets itself.
_OWN_PREFIX: Final = "PLUGIND_"
_SHOWN: Final = 64
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_UUID: Final = "uuid"
_IN_ID: Final = frozenset({_UUID, *ATTRIBUTES})
_IN_VARIABLES: Final = frozenset({_UUID, "path", "id", "link"})


class StaticResourceError(ConfigError):
    """A resource of static devices cannot be used; the text has all of its problems."""

    def __init__(self, problems: Sequence[tuple[str, str]]) -> None:
        super().__init__("; ".join(text for _, text in problems))
        #: The field and the text of each; the field is empty if the resource as a whole has the problem.
        self.problems = problems


@attrs.frozen(field_transformer=refusing_text)
class StaticResource:
    """A resource whose devices are device nodes of the machine.

    Raises:
      ConfigError: if there are neither paths nor attributes to find devices by, or both, or a value cannot be used.
    """

    #: Absolute paths with ``*``, ``?`` and ``[…]``: each device node or link that matches is a device.
    paths: tuple[str, ...] = ()
    #: Instead of paths, the attributes of the devices in sysfs; their values can have ``*``, ``?`` and ``[…]``.
    match: Mapping[str, str] = attrs.field(factory=dict, converter=copied, hash=False)
    #: The id of a device, made of its ``{name}``, which is the last part of its path, of its attributes, and of the
    #: ``{uuid}`` of a GPU of NVIDIA.
    id: str = "{name}"
    #: Paths of nodes that each lease gets besides its devices.
    nodes: tuple[str, ...] = ()
    #: Variables for whoever leases devices, made of the ``{path}``, ``{link}``, ``{id}`` and ``{uuid}`` of each, joined
    #: by commas.
    env: Mapping[str, str] = attrs.field(factory=dict, converter=copied, hash=False)
    #: What a container may do with the nodes: some of ``r``, ``w`` and ``m``.
    permissions: str = "rw"
    #: How many leases can have a device at once.
    shared: int = 1
    #: With ``acl``, only users who hold a lease of a device may open its nodes; None leaves the permissions alone.
    access: str | None = None

    def __attrs_post_init__(self) -> None:
        if problems := tuple(self._problems()):
            raise StaticResourceError(problems)

    def _problems(self) -> Iterator[tuple[str, str]]:
        """Yield the field and the text of each problem; the field is empty if the resource as a whole has it."""
        if bool(self.paths) == bool(self.match):
            yield "", "static devices need paths, or a table match, and not both"
        for field, paths in (("paths", self.paths), ("nodes", self.nodes)):
            for path in paths:
                if not path.startswith("/") or "\0" in path:
                    yield field, f"{_quoted(path)} is not an absolute path"
        for name in self.match:
            if name not in ATTRIBUTES:
                yield "match", f"{_quoted(name)} is no attribute: match has {', '.join(ATTRIBUTES)}"
        if self.match and "subsystem" not in self.match:
            yield "match", 'match needs a subsystem, such as subsystem = "tty"'
        if set(subsystem := self.match.get("subsystem", "")) & set("*?[/"):
            yield "match", f"the subsystem {_quoted(subsystem)} must be one name, such as tty"
        if (why := _wrong_with(self.id, _IN_ID)) is not None:
            yield "id", f"id is {why}"
        for name, template in self.env.items():
            if not _VARIABLE.fullmatch(name) or name.startswith(_OWN_PREFIX):
                yield "env", f"{_quoted(name)} cannot be the name of a variable"
            elif (why := _wrong_with(template, _IN_VARIABLES)) is not None:
                yield "env", f"the variable {name} is {why}"
        if not self.permissions or len(set(self.permissions) & set("rwm")) != len(self.permissions):
            yield "permissions", f"the permissions are {_quoted(self.permissions)}: they are some of r, w and m"
        if not 1 <= self.shared <= MAX_SHARED:
            yield "shared", f"shared is {self.shared}: it must be a whole number from 1 to {MAX_SHARED}"
        if self.access not in (None, "acl"):
            yield "access", f'access is {_quoted(self.access)}: it can be "acl"'


def check_static(resources: Mapping[str, StaticResource]) -> None:
    """Check the names of resources.

    Raises:
      ConfigError: if no resource can have one.
    """
    for name in resources:
        if (why := wrong_with_resource(name)) is not None:
            raise ConfigError(f"no resource can have the name of static devices {_quoted(name)}: {why}")


def _wrong_with(template: str, names: frozenset[str]) -> str | None:
    """Return a template and what is wrong with it; None if nothing is."""
    try:
        parts = list(Formatter().parse(template))
    except ValueError as error:
        return f"{_quoted(template)}: {error}"
    for _, name, form, conversion in parts:
        if name is not None and (name not in names or form or conversion):
            known = ", ".join(f"{{{known}}}" for known in sorted(names))
            return f"{_quoted(template)}: there is no {{{cut(name, _SHOWN)}}}, but {known}"
    return None


def _quoted(text: str) -> str:
    return quoted(cut(text, _SHOWN))
