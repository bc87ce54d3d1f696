"""The default handlers of a node: the built-in ones, and those of installed packages."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from importlib.machinery import PathFinder

from ...protocol.devices.messages import InstanceMessage
from ...protocol.errors import ConfigError
from ...protocol.messages.addresses import Address
from ...protocol.plugins.info import CSI, DEVICE, DRA
from ...protocol.settings.config import Config
from ..devices.handler import DevicePluginHandler
from ..handlers.csi.handler import CSIHandler
from ..handlers.dra.handler import DRAHandler
from ..handlers.handler import Handler, check_handler


def built_in_handlers(
    devices: Address[InstanceMessage] | None = None,
    *,
    strict: bool = False,
    csi: CSIHandler | None = None,
    dra: DRAHandler | None = None,
) -> dict[str, Handler]:
    """Return a handler for each built-in type; that of device plugins tells ``devices`` what they offer.

    With ``strict`` they are as strict with plugins as the kubelet. ``csi`` and ``dra`` are the handlers of CSI and DRA
    drivers, if they are not to be new ones.
    """
    return {
        CSI: csi or CSIHandler(strict=strict),
        DEVICE: DevicePluginHandler(devices, strict=strict),
        DRA: dra or DRAHandler(),
    }


def handlers_at_start(
    config: Config, given: Mapping[str, Handler], devices: Address[InstanceMessage], csi: CSIHandler, dra: DRAHandler
) -> dict[str, Handler]:
    """Return the handlers with which a node starts: those that are ``given``, and built-in ones of the other types.

    Raises:
      ConfigError: if there is one and the node only observes, or its calls may take longer than they are given.
    """
    if config.observe:
        if given:
            raise ConfigError(f"a node that observes has no handlers: leave out those for {', '.join(given)}")
        return {}
    handlers = {**built_in_handlers(devices, strict=config.strict, csi=csi, dra=dra), **given}
    for plugin_type, handler in handlers.items():
        check_handler(plugin_type, handler, config.timeouts.of_handler(plugin_type))
    return handlers


#: The group of the entry points that name handlers.
GROUP = "plugind.handlers"


def installed_handlers() -> dict[str, Handler]:
    """Return a handler for each entry point of the group :data:`GROUP`: its name is the plugin type.

    Raises:
      ConfigError: if an entry point cannot be loaded, or what it names does not make a handler.
    """
    found: dict[str, Handler] = {}
    if not _may_be_installed():
        return found
    # Most nodes have none, and it takes longer to import than all built-in handlers together.
    from importlib.metadata import entry_points

    for entry in entry_points(group=GROUP):
        try:
            handler = found[entry.name] = entry.load()()
            check_handler(entry.name, handler)
        except Exception as error:
            raise ConfigError(
                f"the handler for {entry.name} ({entry.value}) cannot be loaded: {error!r}; repair or uninstall it"
            ) from error
    return found


def _may_be_installed() -> bool:
    """Return whether a distribution may have entry points of the group; False only if none has.

    It looks where ``importlib.metadata`` looks, and does not read what it finds.
    """
    if any(hasattr(finder, "find_distributions") and finder is not PathFinder for finder in sys.meta_path):
        return True
    return any(map(_may_be_in, sys.path))


def _may_be_in(directory: str) -> bool:
    try:
        names = os.listdir(directory or ".")
    except FileNotFoundError:
        return False
    except OSError:
        # An archive, for example.
        return True
    infos = [name for name in names if name.lower().endswith((".dist-info", ".egg-info")) or name == "EGG-INFO"]
    return any(_names_handlers(os.path.join(directory, info, "entry_points.txt")) for info in infos)


def _names_handlers(path: str) -> bool:
    try:
        with open(path, encoding="utf-8", errors="replace") as lines:
            return GROUP in lines.read()
    except OSError:
        # importlib.metadata knows no entry points of a distribution whose file is not there, or cannot be read.
        return False
