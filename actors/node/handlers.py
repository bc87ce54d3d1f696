"""The default handlers of a node: built-in ones, and those of installed packages."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from importlib.machinery import PathFinder
from typing import TYPE_CHECKING

from ...protocol.devices.messages import InstanceMessage
from ...protocol.errors import ConfigError
from ...protocol.messages.addresses import Address
from ...protocol.plugins.info import CSI, DEVICE, DRA
from ...protocol.settings.config import Config
from ..devices.handler import DevicePluginHandler
from ..handlers.csi.handler import CSIHandler
from ..handlers.dra.handler import DRAHandler
from ..handlers.handler import Handler, check_handler

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


def built_in_handlers(
    devices: Address[InstanceMessage] | None = None,
    *,
    strict: bool = False,
    csi: CSIHandler | None = None,
    dra: DRAHandler | None = None,
    is_static: Callable[[str], bool] = lambda _: False,
) -> dict[str, Handler]:
    """Return a handler for each built-in type. The one for device plugins reports their devices to ``devices``.

    With ``strict`` handlers are as strict as the kubelet. ``csi`` and ``dra`` replace the handlers of CSI and DRA
    drivers. ``is_static`` says of which resources no plugin can have devices.
    """
    return {
        CSI: csi or CSIHandler(strict=strict),
        DEVICE: DevicePluginHandler(devices, strict=strict, is_static=is_static),
        DRA: dra or DRAHandler(),
    }


def handlers_at_start(
    config: Config,
    given: Mapping[str, Handler],
    devices: Address[InstanceMessage],
    csi: CSIHandler,
    dra: DRAHandler,
    is_static: Callable[[str], bool],
) -> dict[str, Handler]:
    """Return the handlers with which a node starts: those ``given``, and built-in ones for other types.

    Raises:
      ConfigError: if handlers are given and the node only observes, or a handler needs more time than its calls have.
    """
    if config.observe:
        if given:
            raise ConfigError(f"a node that observes has no handlers: leave out those for {', '.join(given)}")
        return {}
    built_in = built_in_handlers(devices, strict=config.strict, csi=csi, dra=dra, is_static=is_static)
    remote = config.handler_uids.keys() | config.handler_grace.keys()
    if twice := remote & given.keys():
        raise ConfigError(
            f"{', '.join(sorted(twice))} has a handler here, and one in another process: leave it out of handler_uids"
            " and handler_grace, or uninstall the handler"
        )
    handlers = {
        plugin_type: handler for plugin_type, handler in {**built_in, **given}.items() if plugin_type not in remote
    }
    for plugin_type, handler in handlers.items():
        check_handler(plugin_type, handler, config.timeouts.of_handler(plugin_type))
    return handlers


GROUP = "plugind.handlers"


def installed_handlers() -> dict[str, Handler]:
    """Return a handler for each entry point of the group :data:`GROUP`, whose name is the plugin type.

    Raises:
      ConfigError: if an entry point cannot be loaded, or does not make a handler, or if two have the same name.
    """
    found: dict[str, Handler] = {}
    offers: dict[str, EntryPoint] = {}
    if not _may_be_installed():
        return found
    # Most nodes have none, and this import takes longer than all built-in handlers together.
    from importlib.metadata import entry_points

    for entry in entry_points(group=GROUP):
        if (other := offers.setdefault(entry.name, entry)) is not entry:
            raise ConfigError(
                f"{_offer(other)} and {_offer(entry)} each have a handler for {entry.name}: uninstall one of them"
            )
        try:
            handler = found[entry.name] = entry.load()()
            check_handler(entry.name, handler)
        except Exception as error:
            raise ConfigError(
                f"the handler for {entry.name} ({entry.value}) cannot be loaded: {error!r}; repair or uninstall it"
            ) from error
    return found


def _offer(entry: EntryPoint) -> str:
    distribution = "an unknown distribution" if entry.dist is None else f"{entry.dist.name} {entry.dist.version}"
    return f"{distribution} ({entry.value})"


def _may_be_installed() -> bool:
    """Return False only if no distribution has entry points of the group.

    It looks where ``importlib.metadata`` looks, without parsing what it finds.
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
        # importlib.metadata ignores a file that is missing or cannot be read.
        return False
