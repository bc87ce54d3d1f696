"""The form of the document that ``plugind inventory`` prints, from which its JSON Schema is made.

``python -m tests.tools.schemas --write`` writes ``inventory.schema.json`` beside this module. Readers ignore keys that
they do not know: a newer plugind may say more.
"""

from __future__ import annotations

from typing import TypedDict


class HolderForm(TypedDict):
    """The lease that has a device; purpose is the job, the command or the container, or else the id of the lease."""

    lease: str
    state: str
    user: str
    uid: int
    purpose: str
    since: str


class DrainForm(TypedDict):
    """What keeps a device out of service: a drain of it, of its resource, or of the node; by is a uid."""

    resource: str | None
    device: str | None
    reason: str
    since: str
    since_unix: float
    until: str | None
    until_unix: float | None
    by: int


class AttributesForm(TypedDict):
    """The NUMA nodes of a device, and its pool."""

    numa: list[int]
    pool: str | None


class DeviceForm(TypedDict):
    """A device; withheld is why it is given to nobody although it is free. One that is only leased has no since."""

    id: str
    health: str
    healthy: bool
    since: str | None
    holder: HolderForm | None
    drained: DrainForm | None
    withheld: str | None
    attributes: AttributesForm


class ResourceForm(TypedDict):
    """A resource with its devices; allocatable is the number of healthy ones, whoever has them."""

    resource: str
    state: str
    reason: str | None
    capacity: int
    allocatable: int
    devices: list[DeviceForm]


class PluginForm(TypedDict):
    """A socket of a plugin, as in /plugins of the status socket."""

    type: str | None
    name: str | None
    socket: str
    endpoint: str | None
    versions: list[str] | None
    state: str
    reason: str | None
    since: str
    serving: bool | None
    health: str | None
    health_reason: str | None


class InventoryForm(TypedDict):
    """A node at one time, in RFC 3339. A user who may only lease is told neither the version nor the plugins.

    The problems are why no device is given to anybody, and what is not kept over a restart.
    """

    node: str
    time: str
    version: str | None
    problems: list[str]
    plugins: list[PluginForm] | None
    resources: list[ResourceForm]
