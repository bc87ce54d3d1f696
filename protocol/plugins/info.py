"""The rules for a plugin's info: types, names, versions and endpoints.

Everything that a plugin announces is checked here before a handler gets it. The limits hold for every type (faults 51,
72 and 73). The rules of single types are here too, as functions without a clock or a socket.
"""

from __future__ import annotations

import enum
import functools
import math
import re
import sys

import attrs

from ..checks import at_least_one
from ..errors import ValidationError
from ..text import listed, quoted
from ..values import value
from ..words import BUILT_IN_TYPES, CSI, DEVICE, DRA
from .devices import DeviceOptions

__all__ = ["BUILT_IN_TYPES", "CSI", "DEVICE", "DRA"]  # defined elsewhere

#: How many plugins can be registered under one name. A node has one driver of a name, and two during an update.
MAX_INSTANCES = 64


class InstancePolicy(enum.Enum):
    """The policy when several sockets offer one name of one type (behaviour 37)."""

    #: All are registered, and all are active.
    ALL = "all"
    #: All are registered. The latest registration is active; the others are on standby.
    NEWEST = "newest"
    #: All are registered. The one with the highest version is active, or the newest among equal versions. A version is
    #: two or more numbers, as in ``1.2.0``; a suffix such as ``-rc.1`` does not count.
    HIGHEST_VERSION = "highest-version"
    #: Only the first is registered; others are refused while it exists. A plugin of root or of the user that runs
    #: plugind is registered besides one of another user, and is then the active one.
    REJECT = "reject"


@value
class InfoLimits:
    """The limits of a plugin's PluginInfo (faults 51 and 73).

    Raises:
      ConfigError: if one is less than 1.
    """

    #: Characters in the type, the name and each version.
    max_string: int = attrs.field(default=253, validator=at_least_one)
    #: Characters in the endpoint.
    max_endpoint: int = attrs.field(default=4096, validator=at_least_one)
    #: The number of versions.
    max_versions: int = attrs.field(default=128, validator=at_least_one)


#: The numbers of a version, as the kubelet reads them; the rest does not count.
_VERSION = re.compile(r"[\t\n\f\r ]*v?([0-9]+(?:\.[0-9]+)*)(.*)")
_MAX_NUMBER = 2**64 - 1


def _significant(numbers: tuple[int, ...]) -> tuple[int, ...]:
    """Return ``numbers`` without trailing zeros, which do not count: 1.0 and 1.0.0 are equal."""
    length = len(numbers)
    while length > 1 and not numbers[length - 1]:
        length -= 1
    return numbers[:length]


@attrs.frozen(order=True)
class Version:
    """The numbers of a version such as ``1.0.0`` or ``v1.2.0-rc.1``; a pre-release counts as its release."""

    numbers: tuple[int, ...] = attrs.field(eq=_significant, order=_significant)

    @property
    def rank(self) -> tuple[int, ...]:
        """A tuple with the same order as the version, which is faster to compare."""
        return _significant(self.numbers)

    @property
    def major(self) -> int:
        """The first number."""
        return self.numbers[0]

    def __str__(self) -> str:
        return ".".join(map(str, self.numbers))


@functools.lru_cache(maxsize=256)
def parse_version(text: str) -> Version:
    """Parse ``text`` as the kubelet does: two or more numbers, and an arbitrary suffix.

    White space and one ``v`` can come first. Only the first number must not have leading zeros.

    Raises:
      ValidationError: if it is not a version; the text of the error is the kubelet's.
    """
    match = _VERSION.fullmatch(text)
    if match is None:
        raise ValidationError(f"could not parse {quoted(text)} as version")
    parts = match[1].split(".")
    if len(parts) < 2:
        raise ValidationError(f"illegal version string {quoted(text)}")
    if parts[0].startswith("0") and parts[0] != "0":
        raise ValidationError(f"illegal zero-prefixed version component {quoted(parts[0])} in {quoted(text)}")
    return Version(tuple(_number(part, text) for part in parts))


def _number(part: str, text: str) -> int:
    # The length is checked first, because int() refuses a text of thousands of digits.
    digits = part.lstrip("0")
    if len(digits) > 20 or (number := int(digits or "0")) > _MAX_NUMBER:
        why = f"strconv.ParseUint: parsing {quoted(part)}: value out of range"
        raise ValidationError(f"illegal non-numeric version component {quoted(part)} in {quoted(text)}: {why}")
    return number


def highest_version(versions: tuple[str, ...], *, below: float = math.inf) -> Version | None:
    """Return the highest of ``versions`` with a major number under ``below``, the last of equal ones, or None.

    Texts that are not versions are skipped.
    """
    highest: Version | None = None
    for text in reversed(versions):
        version = _version_or_none(text)
        if version is not None and version.major < below and (highest is None or highest.rank < version.rank):
            highest = version
    return highest


def _version_or_none(text: str) -> Version | None:
    try:
        return parse_version(text)
    except ValidationError:
        return None


#: CSI drivers are used only with versions whose major number is lower than this.
CSI_BELOW = 2


class Versions(tuple[str, ...]):
    """The texts of the versions that a plugin announced. They are parsed once, at the first comparison."""

    @functools.cached_property
    def highest(self) -> Version | None:
        """The highest version; None if no text is a version."""
        return highest_version(self)

    @functools.cached_property
    def highest_for_csi(self) -> Version | None:
        """The highest version below 2.0; None if there is none."""
        return highest_version(self, below=CSI_BELOW)


#: Versions with at most so many characters are shared by all plugins that announce them, which nearly all do.
_FEW_CHARACTERS = 64


def _as_versions(versions: tuple[str, ...]) -> Versions:
    if isinstance(versions, Versions):
        return versions
    few = len(versions) <= _FEW_CHARACTERS and sum(map(len, versions)) <= _FEW_CHARACTERS
    return _shared(versions) if few else Versions(versions)


@functools.lru_cache(maxsize=256)
def _shared(versions: tuple[str, ...]) -> Versions:
    return Versions(versions)


@value
class PluginInfo:
    """A plugin's info, as :func:`check_info` accepted it; ``endpoint`` is never empty.

    Of a refused info, only type and name are kept, to be shown.
    """

    type: str
    name: str
    endpoint: str
    versions: Versions = attrs.field(converter=_as_versions)
    #: The user whose process answered, if known. The name belongs to that user (fault 80).
    uid: int | None = None
    #: Whether the info came with a call of Register. Then the plugin is not asked for it, and must call again after a
    #: refusal.
    called: bool = False
    #: Whether that call has succeeded. The plugin then does not call again, so failures are retried by the backoff.
    answered: bool = attrs.field(default=False, eq=False)

    @property
    def version(self) -> Version | None:
        """The version that is used with the plugin: the highest, and for CSI drivers the highest below 2.0."""
        return self.versions.highest_for_csi if self.type == CSI else self.versions.highest


@attrs.frozen
class Plugin:
    """One instance of a plugin, as handlers get it.

    Two instances can have the same ``type`` and ``name``; ``socket`` and ``generation`` tell them apart (behaviour 37).
    """

    type: str
    name: str
    endpoint: str
    versions: tuple[str, ...] = attrs.field(converter=_as_versions)
    #: The path of the registration socket.
    socket: str
    #: Increases with each appearance of a socket; unique in the lifetime of the daemon.
    generation: int
    #: Whether the socket is in a root that is marked deprecated (behaviour 16).
    found_in_deprecated_dir: bool = False
    #: Whether it is of root or of the user that runs plugind. Such a plugin can replace one of another user (fault 80),
    #: so a handler must not refuse it because of one that is not privileged.
    privileged: bool = True
    #: The process that called Register for it, 0 if that is in another pid namespace; None if it was discovered.
    called_by: int | None = None
    #: The options in that call of a device plugin; None if there were none. Its answer to GetDevicePluginOptions
    #: counts.
    called_with: DeviceOptions | None = None
    #: The process that listens, as the kernel tells, and the user to whom it belongs; None where it does not tell.
    pid: int | None = attrs.field(default=None, eq=False, repr=False)
    uid: int | None = attrs.field(default=None, eq=False, repr=False)
    #: Device and inode number of the socket, which a handler that connects to it can compare.
    file: tuple[int, int] | None = attrs.field(default=None, eq=False, repr=False)

    @property
    def source(self) -> str:
        """How the plugin announced itself, in words."""
        return source_of(self.socket, self.called_by)


def source_of(socket: str, called_by: int | None) -> str:
    """Return how a plugin announced itself, in words: by its ``socket``, or by the call of a process."""
    if called_by is None:
        return f"socket {socket}"
    return f"Register call of pid {called_by}" if called_by else "Register call from another pid namespace"


def check_info(
    plugin_type: str,
    name: str,
    endpoint: str,
    versions: tuple[str, ...],
    *,
    socket: str,
    limits: InfoLimits,
    uid: int | None = None,
) -> PluginInfo:
    """Return the info of a plugin of user ``uid``; an empty endpoint becomes the ``socket``.

    Raises:
      ValidationError: if a text is empty, too long or holds control characters, if there are too many versions, or if
        the endpoint is not the absolute path of a unix socket (faults 42, 44, 51, 72 and 73).
    """
    _check_identity(plugin_type, name, limits)
    if len(versions) > limits.max_versions:
        raise ValidationError(f"more than {limits.max_versions} supported versions")
    for version in versions:
        _check_text("version", version, limits.max_string)
    path = _check_endpoint(endpoint, limits) if endpoint else socket
    # No copies are kept of the type, which thousands of plugins share, and of a known path.
    return PluginInfo(sys.intern(plugin_type), name, socket if path == socket else path, versions, uid)


def info_to_show(plugin_type: str, name: str, *, limits: InfoLimits) -> PluginInfo | None:
    """Return the type and name of an info that :func:`check_info` refused; None if one of them is not valid."""
    try:
        _check_identity(plugin_type, name, limits)
    except ValidationError:
        return None
    return PluginInfo(plugin_type, name, "", ())


def _check_identity(plugin_type: str, name: str, limits: InfoLimits) -> None:
    check_type(plugin_type, limits)
    check_name(name, limits)


def check_type(plugin_type: str, limits: InfoLimits) -> None:
    """Check a plugin type by the rules for all types.

    Raises:
      ValidationError: if it is empty, too long or holds control characters.
    """
    _check_word("type", plugin_type, limits)


def check_name(name: str, limits: InfoLimits) -> None:
    """Check a plugin's name by the rules for all types.

    Raises:
      ValidationError: if it is empty, too long or holds control characters.
    """
    _check_word("name", name, limits)


def _check_word(what: str, text: str, limits: InfoLimits) -> None:
    if not text:
        raise ValidationError(f"the plugin's {what} is empty")
    _check_text(what, text, limits.max_string)


def _check_text(what: str, text: str, limit: int) -> None:
    if len(text) > limit:
        raise ValidationError(f"the plugin's {what} has {len(text)} characters, at most {limit} are allowed")
    if not text.isprintable():
        raise ValidationError(f"the plugin's {what} holds control characters: {text!a}")


def _check_endpoint(endpoint: str, limits: InfoLimits) -> str:
    _check_text("endpoint", endpoint, limits.max_endpoint)
    path = endpoint.removeprefix("unix://") if endpoint.startswith("unix:///") else endpoint
    if endpoint.startswith(("@", "unix:@", "unix-abstract:")):
        raise ValidationError(f"the endpoint {endpoint!r} is an abstract socket; give the path of a unix socket")
    if not path.startswith("/"):
        raise ValidationError(f"the endpoint {endpoint!r} is not an absolute path of a unix socket")
    if ".." in path.split("/"):
        raise ValidationError(f"the endpoint {endpoint!r} holds '..'")
    if path.endswith(("/", "/.")):
        raise ValidationError(f"the endpoint {endpoint!r} can only be a directory; give the path of a unix socket")
    return path


_DNS_LABEL = r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?"
_DNS_SUBDOMAIN = re.compile(rf"{_DNS_LABEL}(?:\.{_DNS_LABEL})*")
_RESOURCE_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
#: Characters in the domain of an extended resource: 253, less the prefix ``requests.`` of a quota.
MAX_DOMAIN = 244
#: Characters in the name of an extended resource, after its slash.
MAX_RESOURCE = 63


def check_csi_versions(versions: tuple[str, ...], *, deprecated: bool = False) -> Version:
    """Return the version that is used with a CSI driver, which must be 1.x.

    A driver in a ``deprecated`` root must have 0.x instead (behaviour 16), which the kubelet no longer accepts
    anywhere.

    Raises:
      ValidationError: if there is none; the text of the error is the kubelet's.
    """
    if not versions:
        raise ValidationError("Plugin returned an empty list for supported versions")
    try:
        highest = csi_version(versions)
        if highest.major < 1 and not deprecated:
            raise ValidationError(f"highest supported version reported is {highest}, must be v1.x")
    except ValidationError as error:
        raise ValidationError(
            f"None of the versions specified {listed(versions)} are supported. err={error}"
        ) from error
    if deprecated and highest.major >= 1:
        raise ValidationError("a CSI driver of version 1.0 or above may not register in a deprecated directory")
    return highest


def csi_version(versions: tuple[str, ...]) -> Version:
    """Return the highest of a CSI driver's ``versions`` below 2.0, the last of equal ones.

    Texts that are not versions are skipped.

    Raises:
      ValidationError: if there is none; the text of the error is the kubelet's.
    """
    highest = _as_versions(versions).highest_for_csi
    if highest is None:
        reported, first = " ".join(versions), _first_error(versions)
        raise ValidationError(
            f"could not find a highest supported version from versions ([{reported}]) reported: {first}"
        )
    return highest


def _first_error(versions: tuple[str, ...]) -> str:
    """Return the error for the first text that is not a version, in the kubelet's words."""
    for text in versions:
        try:
            parse_version(text)
        except ValidationError as error:
            return str(error)
    return "<nil>"


#: The version of the device plugin API that this node supports.
DEVICE_PLUGIN_VERSION = "v1beta1"


def check_device_plugin_versions(versions: tuple[str, ...]) -> None:
    """Check that a device plugin's ``versions`` include the one that this node supports.

    Raises:
      ValidationError: if they do not; the text of the error is the kubelet's.
    """
    if DEVICE_PLUGIN_VERSION not in versions:
        offered = " ".join(versions)
        raise ValidationError(
            f"manager version, {DEVICE_PLUGIN_VERSION}, is not among plugin supported versions [{offered}]"
        )


def check_extended_resource(name: str) -> None:
    """Check that ``name`` is an extended resource, ``vendor.domain/name``, as device plugins require.

    Raises:
      ValidationError: if it is not; the text of the error is the kubelet's, followed by the invalid part.
    """
    wrong = wrong_with_resource(name)
    if wrong is not None:
        raise ValidationError(
            f"invalid name of device plugin socket: the ResourceName {quoted(name)} is invalid: {wrong}"
        )


#: The prefix of a quota's name for an extended resource, which must be a valid name too.
_QUOTA = "requests."
_NATIVE = "kubernetes.io/"


def wrong_with_resource(name: str) -> str | None:
    """Return why ``name`` is not an extended resource; None if it is one."""
    domain, slash, resource = name.partition("/")
    if not slash or not domain:
        return "it is not of the form vendor.domain/name"
    if _NATIVE in name:
        return f"{quoted(_NATIVE)} is for the resources of Kubernetes itself"
    if name.startswith(_QUOTA):
        return f"{quoted(_QUOTA)} at the start is for quotas"
    if not _DNS_SUBDOMAIN.fullmatch(domain):
        return f"the domain {quoted(domain)} is not a DNS name in lower case"
    if len(domain) > MAX_DOMAIN:
        return f"the domain has {len(domain)} characters, at most {MAX_DOMAIN} are allowed"
    if not _RESOURCE_NAME.fullmatch(resource):
        return f"{quoted(resource)} does not begin and end with a letter or digit, or holds others than these and -_."
    if len(resource) > MAX_RESOURCE:
        return f"the part after the slash has {len(resource)} characters, at most {MAX_RESOURCE} are allowed"
    return None


#: The DRA services that this node can call, newest first.
DRA_SERVICES = ("v1.DRAPlugin", "v1beta1.DRAPlugin")


def choose_dra_service(versions: tuple[str, ...]) -> str:
    """Return the first of a driver's ``versions`` that is in :data:`DRA_SERVICES`: the driver's order counts.

    Raises:
      ValidationError: if there is none; the text of the error is the kubelet's.
    """
    if not versions:
        raise ValidationError("empty list of supported gRPC services (aka supported versions)")
    for service in versions:
        if service in DRA_SERVICES:
            return service
    raise ValidationError(
        f"none of services supported by the plugin ({listed(versions)}) are supported by the kubelet "
        f"({listed(DRA_SERVICES)})"
    )
