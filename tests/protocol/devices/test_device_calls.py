"""What a call of Register must say, what its caller is told otherwise, and how many there may be."""

from __future__ import annotations

import pytest
from grpclib.const import Status

from plugind.protocol.devices.calls import (
    CallCounter,
    CallLimits,
    CallRefusedError,
    RegisterCall,
    check_call,
    check_caller,
    refusal_of,
)
from plugind.protocol.messages.discovery import CallAnswered
from plugind.protocol.plugins.info import PluginInfo
from plugind.protocol.plugins.status import Outcome
from plugind.protocol.settings.rules import Rules
from plugind.protocol.trust.users import Trust, Users

DIRECTORY = "/var/lib/kubelet/device-plugins"


def call(version: str = "v1beta1", endpoint: str = "a.sock", resource: str = "vendor.com/gpu") -> RegisterCall:
    return RegisterCall(version, endpoint, resource, uid=0, pid=7)


def refused(said: RegisterCall) -> tuple[Status, str]:
    with pytest.raises(CallRefusedError) as caught:
        check_call(said, DIRECTORY)
    return caught.value.code, str(caught.value)


@pytest.mark.parametrize("endpoint", ["a.sock", "vendor.com_gpu", "dp.1700000000", ".hidden", "ü"])
def test_a_call_gives_the_info_of_a_plugin_whose_endpoint_is_in_the_directory(endpoint: str) -> None:
    """Consumers B.3: the sockets of dpm's and of the sample's plugins have no suffix, so names are not filtered."""
    assert check_call(call(endpoint=endpoint), DIRECTORY) == PluginInfo(
        "DevicePlugin", "vendor.com/gpu", f"{DIRECTORY}/{endpoint}", ("v1beta1",), 0, called=True
    )


@pytest.mark.parametrize("version", ["", "v1alpha1", "v1beta2"])
def test_another_version_is_refused_in_the_words_of_the_kubelet(version: str) -> None:
    """Consumers B.1, the first row."""
    assert refused(call(version=version)) == (
        Status.INVALID_ARGUMENT,
        f'requested API version "{version}" is not supported by kubelet. Supported version is ["v1beta1"]',
    )


@pytest.mark.parametrize(
    "resource", ["", "gpu", "vendor.com/", "/gpu", "kubernetes.io/gpu", "requests.a.com/gpu", f"a.com/{'x' * 294}"]
)
def test_a_name_that_is_no_extended_resource_is_refused_in_the_words_of_the_kubelet(resource: str) -> None:
    """Consumers B.1, the second row; the last name has 300 characters."""
    assert refused(call(resource=resource)) == (Status.INVALID_ARGUMENT, f'the ResourceName "{resource}" is invalid')


@pytest.mark.parametrize(
    "endpoint",
    ["", ".", "..", "../x", "a/b", "/a", "kubelet.sock", ".kubelet.sock.tmp", ".plugind.lock", "a\nb", "x" * 80],
)
def test_an_endpoint_that_is_not_a_plain_file_name_is_refused(endpoint: str) -> None:
    """Consumers B.1: the kubelet joins it without any check. The last one makes a path of 112 bytes."""
    shown = endpoint.replace("\n", "\\n")
    assert refused(call(endpoint=endpoint)) == (
        Status.INVALID_ARGUMENT,
        f'the endpoint "{shown}" is not a file name in {DIRECTORY}',
    )


def test_a_text_of_any_length_gives_an_error_of_bounded_length() -> None:
    """Fault 94."""
    assert len(refused(call(version="v" * 50_000))[1]) < 1000
    assert len(refused(call(resource="x" * 50_000))[1]) < 1000
    assert len(refused(call(endpoint="x" * 50_000))[1]) < 1000


RULES = Rules(Trust(uids=(1000,)), Users(own=500, overflow=65534))


def call_of(uid: int) -> RegisterCall:
    return RegisterCall("v1beta1", "a.sock", "vendor.com/gpu", uid, 7)


@pytest.mark.parametrize("uid", [0, 500, 1000])
def test_root_the_user_of_the_daemon_and_trusted_users_may_call(uid: int) -> None:
    """Fault 40, for the process that calls."""
    check_caller(call_of(uid), RULES)


@pytest.mark.parametrize("uid", [1001, 65534])
def test_no_other_user_may_call(uid: int) -> None:
    """Fault 40, for the process that calls."""
    with pytest.raises(CallRefusedError, match=rf"^uid {uid} may not register device plugins$") as caught:
        check_caller(call_of(uid), RULES)
    assert caught.value.code is Status.PERMISSION_DENIED


def test_at_most_four_calls_of_a_process_and_64_in_all_are_under_way() -> None:
    calls = CallCounter(CallLimits())
    for pid in range(1, 17):
        for _ in range(4):
            calls.begin(pid)
    with pytest.raises(CallRefusedError, match=r"^64 calls of Register are under way: call again later$") as caught:
        calls.begin(99)
    assert caught.value.code is Status.RESOURCE_EXHAUSTED
    calls.end(2)
    with pytest.raises(
        CallRefusedError, match=r"^4 calls of Register of process 1 are under way: wait for their answers$"
    ) as caught:
        calls.begin(1)
    assert caught.value.code is Status.RESOURCE_EXHAUSTED
    calls.begin(99)


@pytest.mark.parametrize(
    ("outcome", "code"),
    [
        (Outcome.REFUSED, Status.INVALID_ARGUMENT),
        (Outcome.TIMED_OUT, Status.DEADLINE_EXCEEDED),
        (Outcome.FAILED, Status.UNAVAILABLE),
        (Outcome.BROKEN, Status.UNAVAILABLE),
        (Outcome.SUPERSEDED, Status.UNAVAILABLE),
    ],
)
def test_the_answer_of_a_registration_has_the_code_of_its_outcome(outcome: Outcome, code: Status) -> None:
    refusal = refusal_of(CallAnswered("no", outcome))
    assert refusal is not None
    assert (refusal.code, str(refusal)) == (code, "no")
    assert refusal_of(CallAnswered()) is None
