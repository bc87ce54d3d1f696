"""The texts of the Debian package: what dpkg reads of it, its changelog, and the licences of what it contains."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from importlib.metadata import Distribution
from pathlib import Path
from typing import Final

import attrs

NAME: Final = "plugind"
#: The CPython of each Debian: compiled packages are those for it.
_PYTHONS: Final = {"12": (3, 11), "13": (3, 13)}
_DESCRIPTION: Final = """\
Description: registrar of the plugins of a node
 plugind discovers the sockets of CSI drivers, device plugins and DRA drivers in
 the directories of a node, and registers each with the consumer of its type, as
 the plugin manager of a kubelet does. It leases devices to commands and
 containers, follows the health of drivers and devices, and serves facts and
 metrics of all of them.
 .
 The Python packages that it needs are in a directory of its own. The service
 is neither enabled nor started when the package is installed.
"""
#: Debian has this licence in a file, which a package refers to.
_APACHE: Final = re.compile(r"Apache License\s+Version 2\.0, January 2004")
_APACHE_TEXT: Final = "On Debian systems, the text of the licence is in /usr/share/common-licenses/Apache-2.0."
_HOLDER: Final = re.compile(r"^\W*(?:Copyright\b(?: ?\([cC]\))?|\([cC]\))[\s:]*(.*\d{4}.*)$", re.MULTILINE)
_LICENCES: Final = ("LICEN[CS]E*", "COPYING*", "NOTICE*", "licenses/**/*")


@attrs.frozen
class Release:
    """What a package is called, who made it, and when."""

    version: str
    architecture: str
    #: A name, and an address in angle brackets.
    maintainer: str
    #: Seconds since 1970: the time of all files, too.
    epoch: int

    @property
    def file_name(self) -> str:
        """The name of the file of the package."""
        return f"{NAME}_{self.version}_{self.architecture}.deb"


def debian(system: Mapping[str, str], python: tuple[int, int]) -> str:
    """Return the version of the Debian that a package is built on and for, by the os-release of the system.

    Raises:
        ValueError: no package is built on this system, or with this version of Python.
    """
    version = system.get("VERSION_ID", "") if system["ID"] == "debian" else ""
    if _PYTHONS.get(version) != python:
        known = " or ".join(f"Debian {name} with Python {major}.{minor}" for name, (major, minor) in _PYTHONS.items())
        here = f"{system['PRETTY_NAME']} with Python {python[0]}.{python[1]}"
        raise ValueError(f"this is {here}: build the package on {known}")
    return version


def control(release: Release, depends: Iterable[str], kibibytes: int) -> str:
    """Return the fields of the package; it takes ``kibibytes`` once it is installed."""
    fields = {
        "Package": NAME,
        "Version": release.version,
        "Architecture": release.architecture,
        "Maintainer": release.maintainer,
        "Installed-Size": str(kibibytes),
        "Depends": ", ".join(depends),
        "Section": "admin",
        "Priority": "optional",
    }
    return "".join(f"{name}: {value}\n" for name, value in fields.items()) + _DESCRIPTION


def changelog(release: Release) -> str:
    """Return Debian's changelog; what changed in plugind is in the changelog beside it."""
    date = datetime.fromtimestamp(release.epoch, UTC)
    heading = f"{NAME} ({release.version}) unstable; urgency=medium"
    end = f" -- {release.maintainer}  {date:%a, %d %b %Y %H:%M:%S +0000}"
    return f"{heading}\n\n  * Built from the tree of plugind.\n\n{end}\n"


@attrs.frozen
class Bundled:
    """A distribution that is a part of the package."""

    name: str
    version: str
    #: The files and directories of it in the private directory.
    places: tuple[str, ...]
    licence: str
    #: The texts of its licences, and of notices beside them.
    texts: tuple[str, ...]
    author: str


def bundled(distribution: Distribution) -> Bundled:
    """Return what the copyright file says of an installed distribution."""
    metadata = distribution.metadata.json
    files = [file.parts for file in distribution.files or () if file.parts[0] not in ("..", "bin")]
    (own,) = {parts[0] for parts in files if parts[0].endswith(".dist-info")}
    return Bundled(
        name=str(metadata["name"]),
        version=distribution.version,
        places=tuple(sorted({f"{parts[0]}/*" if len(parts) > 1 else parts[0] for parts in files})),
        licence=str(metadata.get("license_expression") or _one_line(metadata.get("license")) or _classified(metadata)),
        texts=tuple(_texts(Path(str(distribution.locate_file(own))))),
        author=str(metadata.get("author") or metadata.get("author_email") or f"the authors of {metadata['name']}"),
    )


def _one_line(licence: object) -> str | None:
    """Return what the old field for a licence names; some have the whole text in it."""
    return licence if isinstance(licence, str) and 0 < len(licence) < 80 and "\n" not in licence else None


def _classified(metadata: Mapping[str, str | list[str]]) -> str:
    found = [line.rpartition(" :: ")[2] for line in metadata.get("classifier", []) if line.startswith("License :: ")]
    return " and ".join(found) or "see below"


def _texts(metadata: Path) -> Iterator[str]:
    paths = {path for pattern in _LICENCES for path in metadata.glob(pattern) if path.is_file()}
    for path in sorted(paths):
        yield path.read_text(encoding="utf-8")


def copyright_file(parts: Iterable[Bundled]) -> str:
    """Return the copyright file, in the form that machines can read."""
    paragraphs = [
        "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\nUpstream-Name: plugind",
        _paragraph(("*",), ["the authors of plugind"], "Apache-2.0", _APACHE_TEXT),
    ]
    for part in parts:
        places = tuple(f"usr/lib/plugind/{place}" for place in part.places)
        holders = [holder for text in part.texts for holder in _holders(text)]
        texts = "\n\n".join(map(_referring, part.texts or (part.licence,)))
        comment = f"{part.name} {part.version}, as it is on PyPI."
        paragraphs.append(_paragraph(places, holders or [part.author], _short(part.licence), texts, comment))
    return "\n\n".join(paragraphs) + "\n"


def _referring(text: str) -> str:
    """Return the text of a licence, or where Debian has it."""
    if _APACHE.search(text):
        return _APACHE_TEXT
    return f"{text.strip()}\n\n{_APACHE_TEXT}" if "\n" not in text and "Apache" in text else text.strip()


def _holders(text: str) -> Iterator[str]:
    if not _APACHE.search(text):
        yield from (holder.strip() for holder in _HOLDER.findall(text))


def _short(licence: str) -> str:
    """Return the name of a licence in the one word that the form has room for."""
    return "-".join(re.findall(r"[A-Za-z0-9.+]+", licence.removesuffix(" License")))


def _paragraph(places: Iterable[str], holders: Iterable[str], licence: str, text: str, comment: str = "") -> str:
    lines = [f"Files: {' '.join(places)}", f"Copyright: {_continued(holders)}"]
    lines += [f"Comment: {comment}"] if comment else []
    indented = "\n".join(f" {line.rstrip()}" if line.strip() else " ." for line in text.splitlines())
    return "\n".join([*lines, f"License: {licence}", indented])


def _continued(values: Iterable[str]) -> str:
    return "\n  ".join(values)
