"""Values of options that several commands have."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable
from typing import get_args

from ...protocol.errors import ConfigError
from ...protocol.handlers.csi import Collisions
from ...protocol.health.checks import ALL_TYPES
from ...protocol.plugins.info import wrong_with_resource
from ...protocol.trust.users import TrustedUser, parse_trusted_user
from .times import seconds


def typed_seconds(least: float, most: float) -> Callable[[str], tuple[str | None, float]]:
    """Return a parser of ``[TYPE=]SECONDS``: a plugin type, or None for all others, and a number of seconds."""
    parse = seconds(least, most)

    def parsed(text: str) -> tuple[str | None, float]:
        plugin_type, given, number = text.rpartition("=")
        if given and not plugin_type:
            raise argparse.ArgumentTypeError(f"{text!r} names no plugin type before the =")
        return plugin_type or None, parse(number)

    return parsed


def devices_of_resource(text: str) -> tuple[str, int]:
    """Return the resource, and the number of devices, of ``RESOURCE=N``."""
    resource, given, number = text.rpartition("=")
    if not given or not re.fullmatch("[1-9][0-9]{0,8}", number):
        raise argparse.ArgumentTypeError(f"{text!r} is not RESOURCE=N, such as vendor.com/gpu=8, with N from 1")
    return resource_name(resource), int(number)


def static_devices(text: str) -> tuple[str, tuple[str, ...]]:
    """Return the resource, and the patterns of its devices, of ``RESOURCE=PATH,...``."""
    from ...protocol.settings.kinds import WrongValueError
    from ...protocol.settings.static import named

    try:
        return named(text, os.getcwd())
    except WrongValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def health_switch(text: str) -> tuple[str, float | None]:
    """Return the plugin type, or ``ALL_TYPES``, and the seconds between two checks, or None for no checks."""
    plugin_type, given, word = text.rpartition("=")
    if given and not plugin_type:
        raise argparse.ArgumentTypeError(f"{text!r} names no plugin type before the =")
    try:
        return plugin_type or ALL_TYPES, None if word == "off" else seconds(1.0, 86_400.0)(word)
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(f"{error}, nor off") from None


def plugin_name(text: str) -> str:
    """Return a plugin's name in the daemon's form.

    Arguments are decoded by the locale, but the daemon treats the bytes of names and paths as UTF-8 (fault 21).
    """
    if not text:
        raise argparse.ArgumentTypeError("it is empty; give a plugin's name")
    return os.fsencode(text).decode("utf-8", "surrogateescape")


def resource_name(text: str) -> str:
    """Return the name of a resource of device plugins; refuse a name that no resource can have."""
    wrong = wrong_with_resource(text)
    if wrong is not None:
        raise argparse.ArgumentTypeError(f"{text!r} does not name a resource, such as vendor.com/gpu: {wrong}")
    return text


def add_csi_arguments(parser: argparse.ArgumentParser) -> None:
    """Add ``--csi-refresh`` and ``--csi-topology``."""
    parser.add_argument(
        "--csi-refresh",
        type=seconds(10.0, 86_400.0),
        metavar="SECONDS",
        help="ask CSI drivers for their node id, volumes and topology again every so many seconds, 10 or more"
        " (default: only at registration, and for 'plugind retry NAME --facts')",
    )
    parser.add_argument(
        "--csi-topology",
        choices=get_args(Collisions),
        help="what to do with a CSI driver that gives a key of its topology another value than another driver (refuse)",
    )


def add_trust_argument(parser: argparse.ArgumentParser) -> None:
    """Add ``--trust-uid``, whose value is a list of trusted users."""
    parser.add_argument(
        "--trust-uid",
        action="append",
        type=_trusted_user,
        metavar="UID|FIRST-LAST|NAME",
        help="also trust plugins whose process runs as this user, or as one of these; may be repeated (default:"
        " root, and the user that runs plugind)",
    )


def _trusted_user(text: str) -> TrustedUser:
    try:
        return parse_trusted_user(text)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def path_of(target: str) -> str:
    """Return the absolute path of ``target`` in the working directory, in the daemon's form."""
    return os.path.normpath(os.path.join(plugin_name(os.getcwd()), target))


def plugin_target(text: str) -> str:
    """Return the plugin's name, or the absolute path of its socket.

    A name can contain slashes (``vendor.com/device``), so only text that begins like a path is made absolute here.
    Other relative paths are tried when the daemon knows no such name.
    """
    if not text:
        raise argparse.ArgumentTypeError("it is empty; give a plugin's name, or the path of its socket")
    return plugin_name(os.path.abspath(text) if text.startswith(("./", "../")) else text)
