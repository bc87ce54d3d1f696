from __future__ import annotations

import math
from collections.abc import Callable

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plugind.protocol.errors import ValidationError
from plugind.protocol.plugins.info import (
    BUILT_IN_TYPES,
    DRA_SERVICES,
    InfoLimits,
    PluginInfo,
    Version,
    check_csi_versions,
    check_device_plugin_versions,
    check_extended_resource,
    check_info,
    choose_dra_service,
    highest_version,
    parse_version,
)
from plugind.tests.protocol.hypothesis_settings import examples

SOCKET = "/reg/a.sock"
LIMITS = InfoLimits()


def check(
    plugin_type: str = "CSIPlugin",
    name: str = "a.example.com",
    endpoint: str = "/run/a.sock",
    versions: tuple[str, ...] = ("1.0.0",),
    limits: InfoLimits = LIMITS,
) -> PluginInfo:
    return check_info(plugin_type, name, endpoint, versions, socket=SOCKET, limits=limits)


def rejection(attempt: Callable[[], object]) -> str | None:
    """Return why the attempt was rejected, or None; any error but ValidationError is raised."""
    try:
        attempt()
    except ValidationError as error:
        return str(error)
    return None


# --- the info of a plugin ---------------------------------------------------------------------------------------------


def test_plugins_share_the_texts_that_they_have_in_common() -> None:
    """There may be ten thousand of them, and most announce the same type and the same version."""
    letters = [["CSI", "Plugin"], ["1.", "0.0"], ["/reg/", "a.sock"]]
    one, other = (
        check("".join(letters[0]), name, "".join(letters[2]), ("".join(letters[1]),)) for name in ("one", "other")
    )
    assert one.type is other.type
    assert one.versions is other.versions
    assert one.endpoint is other.endpoint is SOCKET
    assert attrs.evolve(one, name="third").versions is one.versions


def test_versions_of_many_characters_are_kept_for_their_plugin_alone() -> None:
    """Fault 51: what a plugin says is not kept longer than the plugin."""
    for versions in (("1." + "0" * 63,), tuple(f"1.{number}" for number in range(65))):
        one, other = (PluginInfo("T", "x", "/a", versions) for _ in range(2))
        assert one.versions == other.versions == versions
        assert one.versions is not other.versions


def test_an_empty_endpoint_is_the_registration_socket() -> None:
    """The default is applied before anything is validated."""
    assert check(endpoint="").endpoint == SOCKET


@pytest.mark.parametrize(
    ("said", "taken"),
    [
        ("/run/a.sock", "/run/a.sock"),
        ("unix:///run/a.sock", "/run/a.sock"),
        ("/run/with space.sock", "/run/with space.sock"),
        ("/run/..a/b..c/...", "/run/..a/b..c/..."),
        ("/run/größe.sock", "/run/größe.sock"),
    ],
)
def test_an_endpoint_is_the_absolute_path_of_a_unix_socket(said: str, taken: str) -> None:
    assert check(endpoint=said).endpoint == taken


@pytest.mark.parametrize(
    ("endpoint", "reason"),
    [
        ("@abstract", "the endpoint '@abstract' is an abstract socket; give the path of a unix socket"),
        ("unix:@abstract", "the endpoint 'unix:@abstract' is an abstract socket; give the path of a unix socket"),
        ("unix-abstract:a", "the endpoint 'unix-abstract:a' is an abstract socket; give the path of a unix socket"),
        ("/run/../etc/a.sock", "the endpoint '/run/../etc/a.sock' holds '..'"),
        ("/run/a.sock/", "the endpoint '/run/a.sock/' can only be a directory; give the path of a unix socket"),
        (
            "unix:///run/a.sock/.",
            "the endpoint 'unix:///run/a.sock/.' can only be a directory; give the path of a unix socket",
        ),
        ("unix:///run/..", "the endpoint 'unix:///run/..' holds '..'"),
        ("a.sock", "the endpoint 'a.sock' is not an absolute path of a unix socket"),
        ("unix://a.sock", "the endpoint 'unix://a.sock' is not an absolute path of a unix socket"),
        ("tcp://127.0.0.1:80", "the endpoint 'tcp://127.0.0.1:80' is not an absolute path of a unix socket"),
        ("127.0.0.1:80", "the endpoint '127.0.0.1:80' is not an absolute path of a unix socket"),
        ("dns:///a:80", "the endpoint 'dns:///a:80' is not an absolute path of a unix socket"),
        ("vsock:3:1024", "the endpoint 'vsock:3:1024' is not an absolute path of a unix socket"),
        (" ", "the endpoint ' ' is not an absolute path of a unix socket"),
        ("/run/a\x00b", "the plugin's endpoint holds control characters: '/run/a\\x00b'"),
        ("/" + 4096 * "a", "the plugin's endpoint has 4097 characters, at most 4096 are allowed"),
    ],
)
def test_an_endpoint_of_another_kind_is_rejected(endpoint: str, reason: str) -> None:
    """Fault 42, the part of fault 43 that can be checked without the file system, and fault 44."""
    assert rejection(lambda: check(endpoint=endpoint)) == reason


@pytest.mark.parametrize("what", ["type", "name"])
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "is empty"),
        (254 * "a", "has 254 characters, at most 253 are allowed"),
        ("a\x00b", "holds control characters: 'a\\x00b'"),
        ("a\x1b[31m", "holds control characters: 'a\\x1b[31m'"),
        ("a\nb", "holds control characters: 'a\\nb'"),
        ("a\u202eb", "holds control characters: 'a\\u202eb'"),
        ("a\ud800b", "holds control characters: 'a\\ud800b'"),
    ],
)
def test_an_empty_overlong_or_unprintable_word_is_rejected(what: str, text: str, reason: str) -> None:
    """Faults 72 and 73: the text reaches no handler, log or page."""
    assert (
        rejection(lambda: check(plugin_type=text) if what == "type" else check(name=text))
        == f"the plugin's {what} {reason}"
    )


def test_more_versions_than_the_limit_are_rejected_before_any_is_parsed() -> None:
    """Fault 51: one message can hold five million empty versions."""
    with pytest.raises(ValidationError, match=r"^more than 128 supported versions$"):
        check(versions=5_000_000 * ("",))


@pytest.mark.parametrize("versions", [(), ("",), ("nonsense",), ("v1beta1", "v1beta2")])
def test_the_meaning_of_a_version_is_left_to_the_handler(versions: tuple[str, ...]) -> None:
    """Fault 75: the handler decides about empty or invalid versions."""
    assert check(versions=versions).versions == versions


def test_a_version_that_is_overlong_or_unprintable_is_rejected() -> None:
    """Faults 51 and 73."""
    with pytest.raises(ValidationError, match=r"^the plugin's version has 254 characters, at most 253 are allowed$"):
        check(versions=("1.0.0", 254 * "1"))
    with pytest.raises(ValidationError, match=r"^the plugin's version holds control characters: "):
        check(versions=("1.0.0\n",))


WORDS = st.text(max_size=9)


@given(WORDS, WORDS, st.text(max_size=13), st.lists(WORDS, max_size=3).map(tuple))
def test_any_info_is_either_accepted_or_rejected_with_a_validation_error(
    plugin_type: str, name: str, endpoint: str, versions: tuple[str, ...]
) -> None:
    """Faults 51, 72 and 73: arbitrary text, surrogates too, gives a checked value or a ValidationError."""
    limits = InfoLimits(max_string=8, max_endpoint=12, max_versions=2)
    reason = rejection(lambda: check(plugin_type, name, endpoint, versions, limits))
    if reason is not None:
        assert reason.isprintable()
    else:
        info = check(plugin_type, name, endpoint, versions, limits)
        assert 0 < len(info.type) <= 8
        assert 0 < len(info.name) <= 8
        assert info.endpoint.startswith("/")
        assert len(info.versions) <= 2
        assert "".join((info.type, info.name, info.endpoint, *info.versions)).isprintable()


# --- versions ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("1.2", (1, 2)),
        ("1.2.3", (1, 2, 3)),
        ("v1.2.3", (1, 2, 3)),
        ("0.3.0", (0, 3, 0)),
        (".".join(9 * "1"), 9 * (1,)),
        ("1.02.00", (1, 2, 0)),
        (f"1.{250 * '0'}7", (1, 7)),
        ("v1.2.0-rc.1", (1, 2, 0)),
        ("1.0.0+build.5", (1, 0, 0)),
        *((f"1.0.0{tail}", (1, 0, 0)) for tail in ("-", "+", "-rc.1", "-ü", " beta", ".", "..1", ".x", "x", "-\\")),
        ("1.0.", (1, 0)),
        ("1.0..5", (1, 0)),
        ("1.0v", (1, 0)),
        *((f"{space}v1.0", (1, 0)) for space in (" ", "\t", "\n", "\f", "\r \n")),
        ("1.0 ", (1, 0)),
        (f"1.{2**64 - 1}", (1, 2**64 - 1)),
    ],
)
def test_versions_are_read_as_the_kubelet_reads_them(text: str, numbers: tuple[int, ...]) -> None:
    """Behaviour 44, TestValidatePlugin: ``ParseGeneric`` takes two or more numbers, and whatever follows them."""
    assert parse_version(text).numbers == numbers


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        *(
            (text, f'could not parse "{text}" as version')
            for text in ("", " ", "v", "V1.0.0", "vv1.0", "one", ".1", "-1.0", "v 1.0", "\u0661.\u0662")
        ),
        ("\u00a01.0", 'could not parse "\\xa01.0" as version'),
        ("1.0\n", 'could not parse "1.0\\n" as version'),
        *(
            (text, f'illegal version string "{text}"')
            for text in ("1", "v1", "1.", "1..2", "1,0", "1-rc.1", "1.x", "v1beta1", "v1.DRAPlugin", "01")
        ),
        ("01.0.0", 'illegal zero-prefixed version component "01" in "01.0.0"'),
        ("00.1", 'illegal zero-prefixed version component "00" in "00.1"'),
        (
            f"1.{2**64}.0",
            f'illegal non-numeric version component "{2**64}" in "1.{2**64}.0": '
            f'strconv.ParseUint: parsing "{2**64}": value out of range',
        ),
    ],
)
def test_what_the_kubelet_does_not_read_as_a_version_is_rejected_in_its_words(text: str, reason: str) -> None:
    """Behaviour 44, TestValidatePlugin; fault 75."""
    assert rejection(lambda: parse_version(text)) == reason


def test_a_number_too_long_for_an_int_is_rejected() -> None:
    """Fault 75: invalid text raises no other error than the declared one."""
    assert "value out of range" in str(rejection(lambda: parse_version(f"1.{5000 * '9'}")))
    assert parse_version(f"1.{5000 * '0'}1") == parse_version("1.1")


NUMBERS = st.lists(st.integers(min_value=0, max_value=2**64 - 1) | st.just(0), min_size=2, max_size=8).map(tuple)
TAILS = st.sampled_from(["", ".", "-rc.1", "+build", "-", "x", "..1", " "])
VERSIONS = st.builds(Version, NUMBERS)


def padded(numbers: tuple[int, ...]) -> tuple[int, ...]:
    return numbers + (8 - len(numbers)) * (0,)


@given(NUMBERS, NUMBERS, TAILS)
def test_versions_compare_by_their_numbers_as_if_zeros_followed(
    left: tuple[int, ...], right: tuple[int, ...], tail: str
) -> None:
    one, other = (parse_version(".".join(map(str, numbers)) + tail) for numbers in (left, right))

    assert one.numbers == left
    assert (one < other, one <= other, one == other) == (
        padded(left) < padded(right),
        padded(left) <= padded(right),
        padded(left) == padded(right),
    )


TEXTS = (
    VERSIONS.map(str)
    | st.sampled_from(["", "x", "v1.0.0", "2.0.0", "v2.1", "1", "1.2", "1.2-rc", "0.3", *DRA_SERVICES, "v1beta1"])
    | WORDS
)
SAID = st.lists(TEXTS, max_size=5).map(tuple)


def version_or_none(text: str) -> Version | None:
    try:
        return parse_version(text)
    except ValidationError:
        return None


@examples(60)
@given(SAID, st.sampled_from([math.inf, 2]))
def test_the_highest_version_is_one_of_the_versions_and_below_none(versions: tuple[str, ...], below: float) -> None:
    every = [number for number in map(version_or_none, versions) if number is not None]
    numbers = [number for number in every if number.numbers[0] < below]
    highest = highest_version(versions, below=below)
    assert (highest is None) == (not numbers)
    if highest is not None:
        assert highest in numbers
        assert all(number <= highest for number in numbers)


# --- the rules of each type -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("versions", "highest"),
    [
        (("v1.0.0",), "1.0.0"),
        (("1.0",), "1.0"),
        (("1.0.",), "1.0"),
        (("1.0.0-",), "1.0.0"),
        (("v1.0.0-rc.1",), "1.0.0"),
        (("0.2.0", "v1.0.0"), "1.0.0"),
        (("0.2.0", "v1.2.3"), "1.2.3"),
        (("v1.2.3", "v0.3.0"), "1.2.3"),
        (("v1.0.0", "v2.0.0"), "1.0.0"),
        (("v2.0.0", "v1.9.9", "v10.0.0"), "1.9.9"),
        (("nonsense", "1", "1.0.0"), "1.0.0"),
        (("1.0.0", "1.0"), "1.0"),
        (("1.0", "1.0.0-rc.1"), "1.0.0"),
    ],
)
def test_a_csi_driver_is_used_with_its_highest_version_below_two(versions: tuple[str, ...], highest: str) -> None:
    """TestValidatePlugin: accepted versions; of equal ones the last is shown, as by the kubelet."""
    assert str(check_csi_versions(versions)) == highest


NONE_FOUND = "could not find a highest supported version from versions ([{}]) reported: {}"


@pytest.mark.parametrize(
    ("versions", "reason"),
    [
        (("0.3.0",), "highest supported version reported is 0.3.0, must be v1.x"),
        (("0.2.0", "v0.3.0-rc", "2.0.0"), "highest supported version reported is 0.3.0, must be v1.x"),
        (("0.0",), "highest supported version reported is 0.0, must be v1.x"),
        (("1",), NONE_FOUND.format("1", 'illegal version string "1"')),
        (("v1",), NONE_FOUND.format("v1", 'illegal version string "v1"')),
        (("01.0",), NONE_FOUND.format("01.0", 'illegal zero-prefixed version component "01" in "01.0"')),
        (("",), NONE_FOUND.format("", 'could not parse "" as version')),
        (("2.0.0",), NONE_FOUND.format("2.0.0", "<nil>")),
        (("v2.0.0", "v3.1.0"), NONE_FOUND.format("v2.0.0 v3.1.0", "<nil>")),
        (("boo", "foo"), NONE_FOUND.format("boo foo", 'could not parse "boo" as version')),
        (("2.0", "foo"), NONE_FOUND.format("2.0 foo", 'could not parse "foo" as version')),
    ],
)
def test_a_csi_driver_without_a_version_1_x_is_rejected(versions: tuple[str, ...], reason: str) -> None:
    """TestValidatePlugin: rejected versions, in the kubelet's words."""
    shown = " ".join(f'"{version}"' for version in versions)
    assert rejection(lambda: check_csi_versions(versions)) == (
        f"None of the versions specified [{shown}] are supported. err={reason}"
    )


def test_a_csi_driver_without_versions_is_rejected() -> None:
    """TestValidatePlugin."""
    assert rejection(lambda: check_csi_versions(())) == "Plugin returned an empty list for supported versions"


@pytest.mark.parametrize(
    ("versions", "highest"), [(("0.3.0",), "0.3.0"), (("0.2.0", "v0.3", "2.0"), "0.3"), (("0.0",), "0.0")]
)
def test_a_csi_driver_in_a_deprecated_root_must_have_version_0_x(versions: tuple[str, ...], highest: str) -> None:
    """Behaviour 16."""
    assert str(check_csi_versions(versions, deprecated=True)) == highest


@pytest.mark.parametrize("versions", [("1.0.0",), ("0.3.0", "1.0.0-rc.1"), ("0.3.0", "1.0.")])
def test_a_csi_driver_of_version_1_x_is_rejected_in_a_deprecated_root(versions: tuple[str, ...]) -> None:
    """Behaviour 16."""
    assert rejection(lambda: check_csi_versions(versions, deprecated=True)) == (
        "a CSI driver of version 1.0 or above may not register in a deprecated directory"
    )


@pytest.mark.parametrize("versions", [("v1beta1",), ("v1alpha1", "v1beta1"), ("v1beta1", "v1beta1", "v2")])
def test_a_device_plugin_names_v1beta1_among_its_versions(versions: tuple[str, ...]) -> None:
    """Behaviour 44."""
    check_device_plugin_versions(versions)


@pytest.mark.parametrize(
    ("versions", "shown"),
    [
        ((), "[]"),
        (("v1alpha1",), "[v1alpha1]"),
        (("v1", "1.0.0"), "[v1 1.0.0]"),
        (("V1beta1", " v1beta1", "v1beta1.DevicePlugin"), "[V1beta1  v1beta1 v1beta1.DevicePlugin]"),
    ],
)
def test_a_device_plugin_without_v1beta1_is_rejected_in_the_kubelets_words(
    versions: tuple[str, ...], shown: str
) -> None:
    """Behaviour 44."""
    assert rejection(lambda: check_device_plugin_versions(versions)) == (
        f"manager version, v1beta1, is not among plugin supported versions {shown}"
    )


@pytest.mark.parametrize(
    "name",
    [
        *("vendor.example/gpu", "example.com/a", "hardware/foo", "example.com/GPU_1.2-x", "a/b", "1.2/3"),
        *("example.com/kubernetes.io", "kubernetes.io.example/gpu", "requests/gpu", "myrequests.example/gpu"),
        f"example.com/{63 * 'a'}",
        f"{244 * 'a'}/gpu",
        f"{244 * 'a'}/{63 * 'b'}",
    ],
)
def test_an_extended_resource_has_a_domain_and_a_name(name: str) -> None:
    check_extended_resource(name)


FORM = "it is not of the form vendor.domain/name"
NATIVE = '"kubernetes.io/" is for the resources of Kubernetes itself'
QUOTA = '"requests." at the start is for quotas'
DOMAIN = 'the domain "{}" is not a DNS name in lower case'
LABEL = '"{}" does not begin and end with a letter or digit, or holds others than these and -_.'


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        *((name, FORM) for name in ("", "cpu", "/gpu", "hugepages-2Mi", "kubernetes.io")),
        *(
            (name, NATIVE)
            for name in (
                *("kubernetes.io/gpu", "x.kubernetes.io/a", "mykubernetes.io/gpu", "example.com/kubernetes.io/a"),
                *("requests.kubernetes.io/a", "kubernetes.io/"),
            )
        ),
        *((name, QUOTA) for name in ("requests.a/b", "requests.example.com/gpu", "requests./gpu")),
        *(
            (f"{domain}/gpu", DOMAIN.format(domain))
            for domain in ("Vendor.example", "vendor..example", "-a.example", "a-.example", "a_b", ".a", "a.", "a b")
        ),
        (f"{245 * 'a'}/gpu", "the domain has 245 characters, at most 244 are allowed"),
        (f"{253 * 'a'}/gpu", "the domain has 253 characters, at most 244 are allowed"),
        *(
            (f"example.com/{label}", LABEL.format(label))
            for label in ("", "-a", "a-", "_a", "a/b", "a b", "größe", ".a", "a.")
        ),
        (f"example.com/{64 * 'a'}", "the part after the slash has 64 characters, at most 63 are allowed"),
    ],
)
def test_an_invalid_extended_resource_is_rejected_in_the_kubelets_words_and_with_the_part_that_is_wrong(
    name: str, reason: str
) -> None:
    """Behaviour 44: ``requests.<name>`` must be a qualified name, which has at most 253 characters in its domain."""
    assert rejection(lambda: check_extended_resource(name)) == (
        f'invalid name of device plugin socket: the ResourceName "{name}" is invalid: {reason}'
    )


@pytest.mark.parametrize(
    ("versions", "service"),
    [
        (("v1.DRAPlugin",), "v1.DRAPlugin"),
        (("v1beta1.DRAPlugin",), "v1beta1.DRAPlugin"),
        (("v1.DRAPlugin", "v1beta1.DRAPlugin"), "v1.DRAPlugin"),
        (("v1beta1.DRAPlugin", "v1.DRAPlugin"), "v1beta1.DRAPlugin"),
        (("v2.DRAPlugin", "v1beta1.DRAPlugin", "v1.DRAPlugin"), "v1beta1.DRAPlugin"),
        (("1.0.0", "v1.DRAPlugin"), "v1.DRAPlugin"),
    ],
    ids=["current", "old", "two", "two-reversed", "one-unknown", "number-first"],
)
def test_a_dra_driver_is_called_by_the_first_of_its_services_that_is_known(
    versions: tuple[str, ...], service: str
) -> None:
    """TestRegistrationHandler: current service, two services, old service. The driver's own order counts."""
    assert choose_dra_service(versions) == service


SERVED_HERE = '["v1.DRAPlugin" "v1beta1.DRAPlugin"]'


@pytest.mark.parametrize(
    ("versions", "shown"),
    [
        (("some-other-service",), '["some-other-service"]'),
        (("1.0.0",), '["1.0.0"]'),
        (("1",), '["1"]'),
        (("v1alpha4.Node", "v1beta1"), '["v1alpha4.Node" "v1beta1"]'),
        (('a"b\\',), '["a\\"b\\\\"]'),
    ],
    ids=["wrong-service", "old-version", "old-version-short", "alpha", "quotes"],
)
def test_a_dra_driver_without_a_known_service_is_rejected(versions: tuple[str, ...], shown: str) -> None:
    """TestRegistrationHandler: wrong version, old version, in the kubelet's words."""
    assert rejection(lambda: choose_dra_service(versions)) == (
        f"none of services supported by the plugin ({shown}) are supported by the kubelet ({SERVED_HERE})"
    )


def test_a_dra_driver_without_services_is_rejected() -> None:
    """TestRegistrationHandler: no services."""
    assert rejection(lambda: choose_dra_service(())) == "empty list of supported gRPC services (aka supported versions)"


def test_the_built_in_types_and_services_are_those_of_the_reference() -> None:
    """Behaviour 41."""
    assert BUILT_IN_TYPES == ("CSIPlugin", "DevicePlugin", "DRAPlugin")
    assert DRA_SERVICES == ("v1.DRAPlugin", "v1beta1.DRAPlugin")
