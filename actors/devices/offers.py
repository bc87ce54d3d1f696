"""Tells the lease actor which devices can be leased, whenever that changes."""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from ...protocol.devices.resources import Resource, Resources
from ...protocol.leases.messages import Offer, OfferChanged, OfferEnded
from ...protocol.messages.addresses import Address, Nobody
from ...protocol.plugins.devices import DeviceList, ResourceState
from ...protocol.values import record

#: The messages about devices to the lease actor.
OfferMessage = OfferChanged | OfferEnded


_NOTHING = DeviceList()
_UNLISTED = "its plugin has not listed its devices yet"


@record(eq=False)
class Offers:
    """The last messages to the lease actor. They survive a crash of the devices actor."""

    _leases: Address[OfferMessage] = attrs.field(factory=Nobody)
    _sent: dict[str, Offer] = attrs.field(factory=dict, init=False)

    def tell(self, names: Iterable[str], resources: Resources) -> None:
        """Send the offers of these resources that have changed."""
        for name in names:
            resource = resources.resource(name)
            if resource is None or resource.state is ResourceState.GONE:
                if self._sent.pop(name, None) is not None:
                    self._leases.send_nowait(OfferEnded(name))
                continue
            offer = _offer(resource)
            if not _is_same(offer, self._sent.get(name)):
                self._sent[name] = offer
                self._leases.send_nowait(OfferChanged(offer))

    def tell_all(self, resources: Resources) -> None:
        """Send all offers that have changed. After a crash, the actor does not know which ones have."""
        self.tell({*self._sent, *resources.names}, resources)


def _offer(resource: Resource) -> Offer:
    serving = resource.serving
    if serving is None:
        return Offer(resource.name, _NOTHING, reason=resource.reason or _UNLISTED)
    if resource.state is not ResourceState.LISTED:
        return Offer(resource.name, serving.listed, reason=resource.reason)
    key = serving.plugin.socket, serving.plugin.generation
    return Offer(resource.name, serving.listed, key, serving.options, serving.calls, resource.reason)


def _is_same(offer: Offer, sent: Offer | None) -> bool:
    """Whether the offer was sent. Comparing the devices of two lists would take longer than sending the offer again."""
    return sent is not None and offer.devices is sent.devices and _rest(offer) == _rest(sent)


def _rest(offer: Offer) -> tuple[object, ...]:
    return offer.key, offer.options, offer.reason
