"""The steps from the tree to a Debian package."""

from __future__ import annotations

import gzip
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.metadata import distributions
from pathlib import Path
from typing import Final

from plugind.actors.console.unit_files import DROP_INS, drop_ins, files
from plugind.deploy.debian.documents import documents
from plugind.deploy.debian.sample import sample
from plugind.deploy.debian.texts import NAME, Release, bundled, changelog, control, copyright_file
from plugind.deploy.man_pages import PLACE
from plugind.deploy.manuals import manuals

REPOSITORY: Final = Path(__file__).resolve().parents[2]
_HERE: Final = Path(__file__).parent
#: Where the packages of Python are.
_LIBRARY: Final = "usr/lib/plugind"
_CONFIGURATION: Final = "etc/plugind/plugind.toml"
#: Where Slurm finds its parts.
_SLURM: Final = "usr/share/plugind/slurm"
#: What of the tree a wheel is built from.
_SOURCES: Final = ("pyproject.toml", "README.md", "LICENSE", "py.typed", "actors", "protocol")
#: What pip writes for itself, with paths of this machine.
_OF_PIP: Final = ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json")
_SCRIPTS: Final = ("postinst", "prerm", "postrm")
#: Modules of other packages that only their own tests use.
_TESTS: Final = ("_tests", "tests", "testdata", "_testcapi*", "testing_refleaks.py")


def build(directory: Path, release: Release) -> Path:
    """Build the package in ``directory``; return its path."""
    package = directory / release.file_name
    with tempfile.TemporaryDirectory(prefix="plugind-deb-") as scratch:
        root = Path(scratch) / "root"
        _fill(root, Path(scratch), release)
        _settle(root, release.epoch)
        environment = {**os.environ, "SOURCE_DATE_EPOCH": str(release.epoch)}
        made = Path(scratch) / release.file_name
        _run("dpkg-deb", "--root-owner-group", "-Zxz", "--build", root, made, environment=environment)
        directory.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(made, package)
    return package


def _fill(root: Path, scratch: Path, release: Release) -> None:
    library = root / _LIBRARY
    _install(library, scratch)
    parts = sorted(map(bundled, distributions(path=[str(library)])), key=lambda part: part.name.lower())
    directory = root / "usr/share/doc/plugind"
    _write(directory / "copyright", copyright_file(part for part in parts if part.name != NAME))
    _clean(library)
    _copy(_HERE / "launcher", root / "usr/bin/plugind")
    _write_service(root)
    _copy(REPOSITORY / "deploy/slurm", root / _SLURM)
    _write(root / _CONFIGURATION, sample())
    (root / f"{_CONFIGURATION}.d").mkdir()
    _write_manuals(root / "usr")
    _write_documents(directory, release)
    _write_control(root, scratch, release)


def _install(library: Path, scratch: Path) -> None:
    """Install the locked packages, each with the hash of its wheel, and plugind."""
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "-q")
    target = ("--target", library, "--no-compile", "--no-deps", "--only-binary=:all:")
    locked = REPOSITORY / ".ci/requirements/run.txt"
    _run(*pip, "install", *target, "--require-hashes", "-r", locked)
    source = scratch / "source"
    for name in (*_SOURCES, *(path.name for path in REPOSITORY.glob("*.py"))):
        _copy(REPOSITORY / name, source / name)
    _run(*pip, "wheel", "--no-deps", "--no-index", "--no-build-isolation", "--wheel-dir", scratch, source)
    (wheel,) = scratch.glob("*.whl")
    _run(*pip, "install", *target, "--no-index", wheel)


def _clean(library: Path) -> None:
    """Remove what only pip and tests need, strip what is compiled, and make no module a program."""
    shutil.rmtree(library / "bin", ignore_errors=True)
    for of_tests in [path for name in _TESTS for path in library.rglob(name)]:
        shutil.rmtree(of_tests) if of_tests.is_dir() else of_tests.unlink(missing_ok=True)
    for metadata in library.glob("*.dist-info"):
        for name in _OF_PIP:
            (metadata / name).unlink(missing_ok=True)
    for compiled in library.rglob("*.so"):
        _run("strip", "--strip-unneeded", compiled)
    for module in library.rglob("*.py"):
        text = module.read_bytes()
        if text.startswith(b"#!"):
            # It is no program here; the line stays as a comment, so that lines keep their numbers.
            module.write_bytes(b"#" + text[2:])


def _write_service(root: Path) -> None:
    """Write the unit, and the drop-ins where an operator links to them."""
    for name, text in files("/usr/bin/plugind", drop_ins()).items():
        place = "usr/share/plugind" if name.startswith(DROP_INS) else "usr/lib/systemd/system"
        _write(root / place / name, text)


def _write_manuals(prefix: Path) -> None:
    for place, text in manuals().items():
        if place.startswith(PLACE):
            _compress(prefix / f"{place}.gz", text)
        else:
            # zsh keeps the other directory for an administrator.
            _write(prefix / place.replace("zsh/site-functions", "zsh/vendor-completions"), text)


def _write_documents(directory: Path, release: Release) -> None:
    _compress(directory / "changelog.Debian.gz", changelog(release))
    _compress(directory / "changelog.gz", (REPOSITORY / "CHANGELOG.md").read_text())
    for name, content in documents().items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_bytes(content)


def _write_control(root: Path, scratch: Path, release: Release) -> None:
    kibibytes = sum(-(-path.stat().st_size // 1024) if path.is_file() else 1 for path in root.rglob("*"))
    sums = [f"{hashlib.md5(path.read_bytes()).hexdigest()}  {name}\n" for name, path in _files(root)]
    _write(root / "DEBIAN/md5sums", "".join(line for line in sums if not line.endswith(f"  {_CONFIGURATION}\n")))
    _write(root / "DEBIAN/conffiles", f"/{_CONFIGURATION}\n")
    major, minor = sys.version_info[:2]
    pythons = (f"python3 (>= {major}.{minor})", f"python3 (<< {major}.{minor + 1})")
    depends = (*pythons, *_libraries(root, scratch))
    _write(root / "DEBIAN/control", control(release, depends, kibibytes))
    for script in _SCRIPTS:
        _copy(_HERE / "scripts" / script, root / "DEBIAN" / script)


def _files(root: Path) -> Iterator[tuple[str, Path]]:
    for path in sorted(root.rglob("*")):
        if path.is_file():
            yield str(path.relative_to(root)), path


def _libraries(root: Path, scratch: Path) -> list[str]:
    """Return the packages of the libraries that compiled modules need, as Debian's tool says."""
    _write(scratch / "debian/control", f"Source: {NAME}\n\nPackage: {NAME}\nArchitecture: any\n")
    compiled = sorted((root / _LIBRARY).rglob("*.so"))
    if not compiled:
        return []
    said = _run("dpkg-shlibdeps", "-O", *(f"-e{path}" for path in compiled), directory=scratch)
    found = re.search(r"^shlibs:Depends=(.*)$", said, re.MULTILINE)
    return found[1].split(", ") if found else []


def _settle(root: Path, epoch: int) -> None:
    """Give all files the same time and the modes that they are to have, whatever the umask is."""
    for path in (root, *root.rglob("*")):
        path.chmod(0o755 if path.is_dir() or _is_program(root, path) else 0o644)
        os.utime(path, (epoch, epoch))


def _is_program(root: Path, path: Path) -> bool:
    if path.parent == root / "DEBIAN":
        return path.name in _SCRIPTS
    if path.parent == root / _SLURM:
        return path.read_bytes().startswith(b"#!")
    return path.parent.name == "bin"


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def _compress(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.encode(), 9, mtime=0))


def _copy(source: Path, place: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, place, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        shutil.copyfile(source, place)


def _run(*command: str | Path, directory: Path | None = None, environment: dict[str, str] | None = None) -> str:
    """Run a command that must succeed; return its output."""
    done = subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    if done.returncode:
        raise SystemExit(f"{command[0]} has failed:\n{done.stdout}{done.stderr}")
    return done.stdout
