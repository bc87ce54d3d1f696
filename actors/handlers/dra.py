"""The handler of drivers for dynamic resource allocation.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from ...protocol.errors import ValidationError
from ...protocol.plugins import InstancePolicy, Plugin, choose_dra_service
from .instances import Instances


class DRAHandler:
    """Accepts DRA drivers that serve a service known to this node; of several of one name the newest is active.

    Rolling updates run two instances of one driver at a time, each on an endpoint of its own.
    """

    instances = InstancePolicy.NEWEST

    def __init__(self) -> None:
        #: The drivers that are registered.
        self.drivers = Instances()

    async def validate(self, plugin: Plugin) -> None:
        """Choose the service, and check that the endpoint is the driver's own.

        Raises:
          ValidationError: if no known service is offered, or another instance has the same endpoint; the text is the
            kubelet's, and names the socket of the other instance.
        """
        try:
            choose_dra_service(plugin.versions)
        except ValidationError as error:
            raise ValidationError(
                f"invalid supported gRPC versions of DRA driver plugin {plugin.name} at endpoint {plugin.endpoint}: "
                f"{error}",
                cause=str(error),
            ) from error
        other = self.drivers.other_at_endpoint(plugin)
        if other is not None:
            raise ValidationError(
                f"endpoint {plugin.endpoint} already registered for DRA driver plugin {plugin.name} "
                f"(by the socket {other.socket})"
            )

    async def register(self, plugin: Plugin) -> None:
        """Keep the driver as the newest of its name."""
        self.drivers.add(plugin)

    async def deregister(self, plugin: Plugin) -> None:
        """Forget the driver; an older instance of its name is the fallback."""
        self.drivers.remove(plugin)

    def service_of(self, name: str) -> tuple[Plugin, str] | None:
        """Return the active driver of ``name`` and the service to call on its endpoint, or None if there is none."""
        instances = self.drivers.of(name)
        return (instances[-1], choose_dra_service(instances[-1].versions)) if instances else None
