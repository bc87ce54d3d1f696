"""The default handlers of a node: the built-in ones, and those of installed packages.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from importlib.metadata import entry_points

from ...protocol.device_messages import InstanceMessage
from ...protocol.errors import ConfigError
from ...protocol.messages import Address
from ...protocol.plugins import CSI, DEVICE, DRA
from .csi import CSIHandler
from .device_plugin import DevicePluginHandler
from .dra import DRAHandler
from .handler import Handler, check_handler


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


def installed_handlers() -> dict[str, Handler]:
    """Return a handler for each entry point of the group ``plugind.handlers``: its name is the plugin type.

    Raises:
      ConfigError: if an entry point cannot be loaded, or what it names does not make a handler.
    """
    found: dict[str, Handler] = {}
    for entry in entry_points(group="plugind.handlers"):
        try:
            handler = found[entry.name] = entry.load()()
            check_handler(entry.name, handler)
        except Exception as error:
            raise ConfigError(
                f"the handler for {entry.name} ({entry.value}) cannot be loaded: {error!r}; repair or uninstall it"
            ) from error
    return found
