"""Plugin types, names, versions and endpoints: what a plugin may say about itself.

Everything that a plugin says passes through this module before a handler sees it. The limits hold for every type
(faults 51, 72 and 73). The further rules of a type belong to its handler; they are here too, as functions without a
clock or a socket.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import enum
import functools
import re

import attrs

from .errors import ValidationError

CSI = "CSIPlugin"
DEVICE = "DevicePlugin"
DRA = "DRAPlugin"
#: The types that have a built-in handler (behaviour 41).
BUILT_IN_TYPES = (CSI, DEVICE, DRA)


class InstancePolicy(enum.Enum):
    """The policy when several sockets offer one name of one type (behaviour 37)."""

    #: All are registered, and all are active.
    ALL = "all"
    #: All are registered. The latest registration is active; the others are on standby.
    NEWEST = "newest"
    #: All are registered. The one with the highest version is active, or the newest among equal versions.
    HIGHEST_VERSION = "highest-version"
    #: Only the first is registered; others are refused while it exists.
    REJECT = "reject"


@attrs.frozen
class InfoLimits:
    """The limits of a plugin's PluginInfo (faults 51 and 73)."""

    #: Characters in the type, the name and each version.
    max_string: int = 253
    #: Characters in the endpoint.
    max_endpoint: int = 4096
    #: The number of versions.
    max_versions: int = 128


@attrs.frozen
class PluginInfo:
    """What a plugin said about itself, as :func:`check_info` accepted it; ``endpoint`` is never empty."""

    type: str
    name: str
    endpoint: str
    versions: tuple[str, ...]


@attrs.frozen
class Plugin:
    """One instance of a plugin as a handler sees it.

    Two instances may share ``type`` and ``name``; ``socket`` and ``generation`` tell them apart (behaviour 37).
    """

    type: str
    name: str
    endpoint: str
    versions: tuple[str, ...]
    #: The path of the registration socket.
    socket: str
    #: Increases with each appearance of a socket; unique in the lifetime of the daemon.
    generation: int
    #: Whether the socket is in a root that is marked deprecated (behaviour 16).
    found_in_deprecated_dir: bool = False


def check_info(
    plugin_type: str, name: str, endpoint: str, versions: tuple[str, ...], *, socket: str, limits: InfoLimits
) -> PluginInfo:
    """Return what the plugin said as a :class:`PluginInfo`; an empty endpoint becomes the ``socket``.

    Raises:
      ValidationError: if a text is empty, too long or holds control characters, if there are too many versions, or if
        the endpoint is not the absolute path of a unix socket (faults 42, 44, 51, 72 and 73).
    """
    for what, text in (("type", plugin_type), ("name", name)):
        if not text:
            raise ValidationError(f"the plugin's {what} is empty")
        _check_text(what, text, limits.max_string)
    if len(versions) > limits.max_versions:
        raise ValidationError(f"more than {limits.max_versions} supported versions")
    for version in versions:
        _check_text("version", version, limits.max_string)
    return PluginInfo(plugin_type, name, _check_endpoint(endpoint, limits) if endpoint else socket, versions)


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
    return path


_VERSION = re.compile(
    r"v?(0|[1-9][0-9]{0,8})((?:\.(?:0|[1-9][0-9]{0,8})){0,7})((?:-[0-9A-Za-z.-]+)?)(?:\+[0-9A-Za-z.-]+)?"
)


@attrs.frozen(order=False, eq=True)
class Version:
    """A version number such as ``1.0.0`` or ``v1.2.0-rc.1``; a pre-release comes before its release."""

    numbers: tuple[int, ...]
    prerelease: str = ""

    @property
    def key(self) -> tuple[tuple[int, ...], bool, tuple[tuple[bool, int, str], ...], str]:
        """The key that orders versions. Pre-releases compare part by part (Semantic Versioning 2.0.0, section 11)."""
        parts = tuple(_prerelease_key(part) for part in self.prerelease.split("."))
        # The text itself comes last, so that only identical versions are equal ("rc.1" and "rc.01" are not).
        return self.numbers, not self.prerelease, parts, self.prerelease

    def __str__(self) -> str:
        release = ".".join(map(str, self.numbers))
        return f"{release}-{self.prerelease}" if self.prerelease else release

    def __lt__(self, other: Version) -> bool:
        return self.key < other.key

    def __le__(self, other: Version) -> bool:
        return self.key <= other.key


def _prerelease_key(part: str) -> tuple[bool, int, str]:
    """Order numbers before words and by size. Lengths compare first: a hostile number may be too long for int()."""
    digits = part.lstrip("0")
    return (False, len(digits), digits) if part.isdecimal() and part.isascii() else (True, 0, part)


@functools.lru_cache(maxsize=256)
def parse_version(text: str) -> Version:
    """Parse ``text``, which may start with ``v``; ``1`` counts as ``1.0.0``.

    Raises:
      ValidationError: if it is not a version number.
    """
    match = _VERSION.fullmatch(text)
    if match is None:
        raise ValidationError(f"{text!r} is not a version number")
    numbers = [int(match[1]), *(int(part) for part in match[2].split(".") if part)]
    numbers += [0] * (3 - len(numbers))
    return Version(tuple(numbers), match[3].removeprefix("-"))


def highest_version(versions: tuple[str, ...]) -> Version | None:
    """Return the highest of ``versions``, or None; texts that are not version numbers are skipped."""
    numbers = [version for version in map(_version_or_none, versions) if version is not None]
    return max(numbers, key=lambda version: version.key, default=None)


def _version_or_none(text: str) -> Version | None:
    try:
        return parse_version(text)
    except ValidationError:
        return None


_DNS_LABEL = r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?"
_DNS_SUBDOMAIN = re.compile(rf"{_DNS_LABEL}(?:\.{_DNS_LABEL})*")
_RESOURCE_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")


def check_csi_versions(versions: tuple[str, ...]) -> Version:
    """Return the highest of a CSI driver's ``versions`` that this node supports.

    As in the reference, a driver may also offer versions that this node does not support: 2.x and above, and texts that
    are not version numbers.

    Raises:
      ValidationError: if there is no version, or none that this node supports.
    """
    if not versions:
        raise ValidationError("the CSI driver names no supported version")
    highest = highest_version(tuple(text for text in versions if not _is_of_the_future(text)))
    if highest is None:
        raise ValidationError(f"none of the CSI versions {', '.join(map(repr, versions))} is a version number below 2")
    return highest


def _is_of_the_future(text: str) -> bool:
    version = _version_or_none(text)
    return version is not None and version.numbers[0] >= 2


def check_extended_resource(name: str) -> None:
    """Check that ``name`` is an extended resource, ``vendor.domain/name``, as device plugins require.

    Raises:
      ValidationError: if it is not; the reason names the invalid part.
    """
    domain, slash, resource = name.partition("/")
    if not slash or not domain:
        raise ValidationError(f"the resource name {name!r} is not of the form vendor.domain/name")
    if not _DNS_SUBDOMAIN.fullmatch(domain) or len(domain) > 253:
        raise ValidationError(f"the domain {domain!r} of the resource name {name!r} is not a DNS name in lower case")
    if domain == "kubernetes.io" or domain.endswith(".kubernetes.io") or name.startswith("requests."):
        raise ValidationError(f"the resource name {name!r} lies in a domain that is not a vendor's")
    if not _RESOURCE_NAME.fullmatch(resource) or len(resource) > 63:
        raise ValidationError(
            f"the name {resource!r} in the resource name {name!r} is not a label of at most 63 characters"
        )


#: The DRA services that this node can call, newest first.
DRA_SERVICES = ("v1.DRAPlugin", "v1beta1.DRAPlugin")


def choose_dra_service(versions: tuple[str, ...]) -> str:
    """Return the newest of :data:`DRA_SERVICES` that a driver's ``versions`` name.

    A driver that offers only version numbers (``1.0.0``) predates named services, and provides the oldest service.

    Raises:
      ValidationError: if there is no version, or no service that this node knows.
    """
    if not versions:
        raise ValidationError("the DRA driver names no supported service")
    for service in DRA_SERVICES:
        if service in versions:
            return service
    if any(version.startswith("1.") or version == "1" for version in versions):
        return DRA_SERVICES[-1]
    raise ValidationError(
        f"none of the DRA services {', '.join(DRA_SERVICES)} is among {', '.join(map(repr, versions))}"
    )
