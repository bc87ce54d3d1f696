"""The values that the JSON of the status socket describes: the other direction of ``status_json`` and ``devices_json``.

Times that are ``trio.current_time()`` inside of a node are Unix seconds here, by the clock of the daemon. What a newer
daemon says beside that is ignored, and what an older one does not say has its default.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from ..leases.json_values import every, exactly, exactly_or_none, number, text_by_text, texts, wrong_form_is
from ..plugins.devices import Device, DeviceList, DeviceOptions, InstanceStatus, ResourceState, ResourceStatus
from ..plugins.health import Health
from ..plugins.status import HistoryEntry, PluginStatus, StateName
from ..words import STATE_IN, Step

#: How the source of a plugin begins that has called Register; see :func:`~.plugins.source_of`.
_CALLED = "Register call"


class StatusFormError(ValueError):
    """What the daemon answers cannot be understood: it is another version of plugind, or none."""


def plugin_from_json(content: object) -> PluginStatus:
    """Return the status of a plugin, as ``status_json`` has written it.

    Raises:
      StatusFormError: if it is not of that form.
    """
    with wrong_form_is(StatusFormError, "it is no plugin that this version of plugind knows"):
        return _plugin_of(content)


def resource_from_json(content: object) -> ResourceStatus:
    """Return a resource with its devices, as ``devices_json`` has written it.

    Raises:
      StatusFormError: if it is not of that form.
    """
    with wrong_form_is(StatusFormError, "it is no resource that this version of plugind knows"):
        return _resource_of(content)


def _unix(found: object) -> float:
    return datetime.fromisoformat(exactly(str, found)).timestamp()


def _unix_or_none(found: object) -> float | None:
    return None if found is None else _unix(found)


def _number_or_none(found: object) -> float | None:
    return None if found is None else number(found)


def _plugin_of(content: Any) -> PluginStatus:
    given: Mapping[str, Any] = exactly(dict, content)
    versions, health = given.get("versions"), given.get("health")
    return PluginStatus(
        socket=exactly(str, given["socket"]),
        root=exactly(str, given["root"]),
        generation=exactly(int, given["generation"]),
        state=_state_of(given),
        since=_unix(given["since"]),
        reason=exactly_or_none(str, given["reason"]),
        attempt=exactly(int, given["attempt"]),
        next_try=_unix_or_none(given.get("next_try_at")),
        type=exactly_or_none(str, given["type"]),
        name=exactly_or_none(str, given["name"]),
        endpoint=exactly_or_none(str, given["endpoint"]),
        versions=None if versions is None else texts(versions),
        registered_in=_number_or_none(given.get("registered_in")),
        active=exactly_or_none(bool, given.get("active")),
        warnings=texts(given.get("warnings", [])),
        uid=exactly_or_none(int, given.get("uid")),
        pid=exactly_or_none(int, given.get("pid")),
        cause=exactly_or_none(str, given.get("cause")),
        history=every(_entry_of, given.get("history", [])),
        serving=exactly_or_none(bool, given.get("serving")),
        not_serving=exactly_or_none(str, given.get("not_serving")),
        not_serving_since=_unix_or_none(given.get("not_serving_since")),
        called=exactly(str, given.get("source", "")).startswith(_CALLED),
        owner=exactly_or_none(int, given.get("owner")),
        health=None if health is None else Health(health),
        health_reason=exactly_or_none(str, given.get("health_reason")),
        health_since=_unix_or_none(given.get("health_since")),
        facts=tuple(text_by_text(given.get("facts", {})).items()),
        failed_checks=exactly(int, given.get("failed_checks", 0)),
        last_known=exactly(bool, given.get("last_known", False)),
        step=_step_of(given),
        steps=tuple((Step(step), number(seconds)) for step, seconds in exactly(dict, given.get("steps", {})).items()),
    )


def _step_of(content: Mapping[str, Any]) -> Step | None:
    """Return the step of a try; daemons of version 1 of the status socket say none."""
    step = content.get("step")
    return None if step is None else Step(step)


def _state_of(content: Mapping[str, Any]) -> StateName:
    step = _step_of(content)
    return StateName(content["state"]) if step is None else STATE_IN[step]


def _entry_of(content: Any) -> HistoryEntry:
    reason, cause = exactly_or_none(str, content["reason"]), exactly_or_none(str, content.get("cause"))
    state, attempt = _state_of(content), exactly(int, content["attempt"])
    return HistoryEntry(_unix(content["at"]), state, reason, attempt, cause, _step_of(content))


def _resource_of(content: Any) -> ResourceStatus:
    devices = [(_device_of(device), _unix(device["since"])) for device in exactly(list, content.get("devices", []))]
    goes_in = _number_or_none(content["goes_in"])
    age = number(content["age"])
    since = _unix(content["since"])
    return ResourceStatus(
        name=exactly(str, content["resource"]),
        state=ResourceState(content["state"]),
        since=since,
        reason=exactly_or_none(str, content["reason"]),
        until=None if goes_in is None else since + age + goes_in,
        instances=every(_instance_of, content["plugins"]),
        socket=exactly_or_none(str, content["plugin"]),
        # The devices of a lost plugin are unhealthy in this form already.
        listed=DeviceList([device for device, _ in devices]),
        changed={device.id: since for device, since in devices},
        last_capacity=exactly_or_none(int, content.get("last_capacity")),
    )


def _device_of(content: Any) -> Device:
    numa = every(lambda node: exactly(int, node), content["numa"])
    return Device(exactly(str, content["id"]), exactly(str, content["health"]), numa)


def _instance_of(content: Any) -> InstanceStatus:
    return InstanceStatus(
        socket=exactly(str, content["socket"]),
        generation=exactly(int, content["generation"]),
        endpoint=exactly(str, content["endpoint"]),
        source=exactly(str, content["source"]),
        options=DeviceOptions(
            exactly(bool, content["pre_start_required"]), exactly(bool, content["get_preferred_allocation_available"])
        ),
        active=exactly(bool, content["active"]),
        lists=exactly(int, content["lists"]),
        last_list=_unix_or_none(content["last_list"]),
        devices=exactly(int, content["devices"]),
        healthy=exactly(int, content["healthy"]),
        lost_since=_unix_or_none(content["lost_since"]),
        reason=exactly_or_none(str, content["reason"]),
        warning=exactly_or_none(str, content.get("warning")),
    )
