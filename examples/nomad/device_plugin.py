"""A device plugin of Nomad whose devices are those of plugind: Nomad places tasks by them, and plugind leases them.

It was never run with an agent of Nomad. ``README.md`` beside it says what was tried instead, and how to set it up.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc

from plugind.client import ClientError, Lease, LeaseFailedError, NoDaemonError, Problem, ResourceState, SyncClient

base: Any = grpc.protos("nomad_base.proto")
nomad: Any = grpc.protos("nomad_device.proto")

#: By this variable an agent tells that it has started a plugin.
COOKIE = ("NOMAD_PLUGIN_MAGIC_COOKIE", "e4327c2e01eabfd75a8a67adb114fb34a757d57eee7728d857a8cec6e91a7255")
#: The version of the protocol of Nomad's device plugins.
API = "v0.1.0"
#: How the ids of all leases for Nomad begin.
PREFIX = "nomad-"
#: Seconds between two looks at the devices.
PERIOD = 2.0
#: Seconds for which a reservation waits for plugind to run, and for devices: a task whose reservation fails has failed.
PATIENCE, WAIT = 60.0, 65.0


class UnusableError(Exception):
    """A reservation cannot be made; the text says why."""


class Devices:
    """The devices of one resource that are in a pool of plugind."""

    def __init__(self, client: SyncClient, resource: str, pool: str) -> None:
        """Offer the devices of ``resource``, and lease them from ``pool``."""
        self.resource = resource
        self.pool = pool
        self._client = client
        #: The ids of the last list.
        self._last_ids: tuple[str, ...] = ()
        self._one_at_a_time = threading.Lock()

    def look(self) -> dict[str, str]:
        """Return by id why Nomad cannot have a device now, or an empty text.

        While plugind or the plugin is away, the devices of the last list stay: Nomad takes one that comes back for
        another device.
        """
        try:
            leases = self._client.leases()
            (found,) = self._client.devices(self.resource)
        except ClientError as error:
            return dict.fromkeys(self._last_ids, str(error))
        if found.state not in (ResourceState.LISTED, ResourceState.LOST):
            return dict.fromkeys(self._last_ids, found.reason or f"the resource is {found.state}")
        health = {device.id: "" if device.healthy else found.reason or device.health for device in found.devices()}
        for lease in leases:
            if not lease.id.startswith(PREFIX):
                for device in health.keys() & set(lease.devices.get(self.resource, ())):
                    health[device] = health[device] or f"user {lease.uid} has it by the lease {lease.id}"
        self._last_ids = tuple(health)
        return health

    def reserve(self, ids: Sequence[str]) -> Any:
        """Lease these devices until they are reserved again; return what the task gets.

        Raises:
          UnusableError: if the request makes no sense, or a task cannot be given what the device plugin answers.
          ClientError: if plugind does not give the devices.
        """
        if not ids or not all(ids) or len(set(ids)) < len(ids):
            raise UnusableError("a reservation names no device, or one of them twice")
        with self._one_at_a_time:
            lease = self._leased(tuple(ids))
            try:
                return _given(lease)
            except UnusableError:
                self._release(lease.id)
                raise

    def _leased(self, ids: tuple[str, ...]) -> Lease:
        """Ask again while plugind is being started again. It gives one lease for one id, however often it is asked."""
        name, until = f"{PREFIX}{uuid.uuid4().hex[:12]}", time.monotonic() + PATIENCE
        while True:
            try:
                for old in self._client.leases(PREFIX):
                    # Nomad gives one of its devices to another task, so the task of this lease has ended.
                    if old.id != name and self.resource in old.devices and set(ids) & set(old.devices[self.resource]):
                        self._release(old.id)
                return self._client.take(
                    {self.resource: len(ids)}, ids=ids, id=name, pool=self.pool, wait=WAIT, until_release=True
                )
            except NoDaemonError:
                if time.monotonic() >= until:
                    raise
                time.sleep(1)  # There is no event for the start of a daemon.

    def _release(self, lease: str) -> None:
        try:
            self._client.release(lease)
        except LeaseFailedError as error:
            if error.problem is not Problem.UNKNOWN:
                raise


class Plugin:
    """The calls of Nomad and of go-plugin, the library by which it starts and ends plugins."""

    def __init__(self, devices: Devices, stopping: threading.Event) -> None:
        """Offer ``devices``; set ``stopping`` when the agent asks for the end."""
        self._devices = devices
        self._stopping = stopping
        # A job asks for the resource by these two.
        self._vendor, _, self._kind = devices.resource.partition("/")

    def services(self) -> Iterator[grpc.GenericRpcHandler]:
        """Yield all services."""
        one, stream = grpc.unary_unary_rpc_method_handler, grpc.unary_stream_rpc_method_handler

        def named(service: str, package: Any, **methods: Any) -> grpc.GenericRpcHandler:
            handlers = {
                name: kind(call, getattr(package, f"{name}Request").FromString, _bytes)
                for name, (kind, call) in methods.items()
            }
            return grpc.method_handlers_generic_handler(service, handlers)

        yield named(
            "hashicorp.nomad.plugins.base.proto.BasePlugin",
            base,
            PluginInfo=(one, self._info),
            # The block "config" is empty: the arguments have it all.
            ConfigSchema=(one, lambda *_: base.ConfigSchemaResponse(spec=base.Spec(object=base.Object()))),
            SetConfig=(one, lambda *_: base.SetConfigResponse()),
        )
        yield named(
            "hashicorp.nomad.plugins.device.DevicePlugin",
            nomad,
            Fingerprint=(stream, self._fingerprint),
            Reserve=(one, self._reserve),
            Stats=(stream, self._stats),
        )
        # The answers are a HealthCheckResponse with the status SERVING, and an empty message.
        serving, ended = one(lambda *_: b"\x08\x01"), one(self._shutdown)
        yield grpc.method_handlers_generic_handler("grpc.health.v1.Health", {"Check": serving})
        yield grpc.method_handlers_generic_handler("plugin.GRPCController", {"Shutdown": ended})

    def _info(self, *_: object) -> Any:
        name = f"plugind-{self._devices.pool}"
        return base.PluginInfoResponse(type=base.DEVICE, plugin_api_versions=[API], plugin_version="0.0.0", name=name)

    def _shutdown(self, *_: object) -> bytes:
        self._stopping.set()
        return b""

    def _looks(self, context: grpc.ServicerContext, period: float) -> Iterator[dict[str, str]]:
        while context.is_active() and not self._stopping.is_set():
            yield self._devices.look()
            self._stopping.wait(period)

    def _fingerprint(self, _: object, context: grpc.ServicerContext) -> Iterator[Any]:
        """Send the whole list, and again when it has changed. Without this stream, Nomad has no devices."""
        last = None
        for health in self._looks(context, PERIOD):
            if health != last:
                last = health
                devices = [
                    nomad.DetectedDevice(ID=device, healthy=not why, health_description=why)
                    for device, why in health.items()
                ]
                group = nomad.DeviceGroup(
                    vendor=self._vendor, device_type=self._kind, device_name=self._kind, devices=devices
                )
                yield nomad.FingerprintResponse(device_group=[group] if devices else [])

    def _stats(self, request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        interval = request.collection_interval
        for health in self._looks(context, max(interval.seconds + interval.nanos / 1e9, PERIOD)):
            now = nomad.Timestamp(seconds=int(time.time()))
            stats = {
                device: nomad.DeviceStats(summary=nomad.StatValue(string_val=why or "Healthy"), timestamp=now)
                for device, why in health.items()
            }
            group = nomad.DeviceGroupStats(vendor=self._vendor, type=self._kind, name=self._kind, instance_stats=stats)
            yield nomad.StatsResponse(groups=[group])

    def _reserve(self, request: Any, context: grpc.ServicerContext) -> Any:
        try:
            return nomad.ReserveResponse(container_res=self._devices.reserve(request.device_ids))
        except (ClientError, UnusableError) as error:
            print(f"a reservation has failed: {error}", file=sys.stderr, flush=True)
            return context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))


def _bytes(message: Any) -> bytes:
    sent: bytes = message.SerializeToString()
    return sent


def _given(lease: Lease) -> Any:
    """Return what the task gets: what the device plugin has answered, and plugind's own variables.

    Raises:
      UnusableError: if Nomad has no place for it.
    """
    answer = lease.answer
    assert answer is not None, "a lease that is held has an answer"
    if answer.cdi_devices or any(key.startswith("cdi.k8s.io/") for key in answer.annotations):
        raise UnusableError("the device plugin has named CDI devices, which Nomad cannot give to a task")
    devices = ";".join(f"{resource}={','.join(ids)}" for resource, ids in lease.devices.items())
    return nomad.ContainerReservation(
        envs={**answer.env, "PLUGIND_LEASE": lease.id, "PLUGIND_DEVICES": devices},
        mounts=[
            nomad.Mount(task_path=mount.container_path, host_path=mount.host_path, read_only=mount.read_only)
            for mount in answer.mounts
        ],
        devices=[
            nomad.DeviceSpec(task_path=node.container_path, host_path=node.host_path, permissions=node.permissions)
            for node in answer.nodes
        ],
    )


def main() -> None:
    """Be a plugin until the agent ends it."""
    parser = argparse.ArgumentParser(description="Offer devices of plugind to the agent of Nomad that starts this.")
    parser.add_argument("--resource", required=True, help="the resource, such as example.com/gpu")
    parser.add_argument("--pool", default="nomad", help="the pool of plugind that has its devices (default: nomad)")
    parser.add_argument("--status", help="the status socket of plugind (default: as plugind's commands)")
    args = parser.parse_args()
    if os.environ.get(COOKIE[0]) != COOKIE[1]:
        sys.exit("device_plugin: this is a plugin of Nomad: its agent starts it")
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    # An interrupt of the agent's terminal is for the agent, which ends its plugins itself.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    server = grpc.server(ThreadPoolExecutor(16))
    devices = Devices(SyncClient(args.status), args.resource, args.pool)
    server.add_generic_rpc_handlers(tuple(Plugin(devices, stopping).services()))
    # The variable is go-plugin's.
    with tempfile.TemporaryDirectory(prefix="plugind-", dir=os.environ.get("PLUGIN_UNIX_SOCKET_DIR")) as directory:
        server.add_insecure_port(f"unix:{directory}/s")
        server.start()
        print(f"1|2|unix|{directory}/s|grpc|", flush=True)
        stopping.wait()
        server.stop(grace=0.5).wait()


if __name__ == "__main__":
    main()
