from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plugind.protocol.errors import ValidationError
from plugind.protocol.plugins import (
    BUILT_IN_TYPES,
    DRA_SERVICES,
    InfoLimits,
    Plugin,
    PluginInfo,
    Version,
    check_csi_versions,
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


def test_valid_info_is_accepted_unchanged() -> None:
    assert check() == PluginInfo("CSIPlugin", "a.example.com", "/run/a.sock", ("1.0.0",))


def test_an_empty_endpoint_is_the_registration_socket() -> None:
    """An empty endpoint defaults to the socket path, before anything is validated."""
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
    """Fault 42, the part of fault 43 that a text shows, and fault 44."""
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


def test_words_up_to_the_limit_are_accepted() -> None:
    """Fault 73, below its limit."""
    info = check(253 * "t", 253 * "n", "/" + 4095 * "e", 128 * (253 * "v",))

    assert (len(info.type), len(info.name), len(info.endpoint), len(info.versions)) == (253, 253, 4096, 128)


def test_more_versions_than_the_limit_are_rejected_before_any_is_parsed() -> None:
    """Fault 51: five million empty versions."""
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
    ("text", "version"),
    [
        ("1", Version((1, 0, 0))),
        ("1.2", Version((1, 2, 0))),
        ("1.2.3", Version((1, 2, 3))),
        ("v1.2.3", Version((1, 2, 3))),
        ("0.3.0", Version((0, 3, 0))),
        ("1.2.3.4", Version((1, 2, 3, 4))),
        ("v1.2.0-rc.1", Version((1, 2, 0), "rc.1")),
        ("1.0.0-alpha", Version((1, 0, 0), "alpha")),
        ("1.0.0+build.5", Version((1, 0, 0))),
        ("1.0.0-rc.1+build.5", Version((1, 0, 0), "rc.1")),
        ("999999999.0.0", Version((999999999, 0, 0))),
    ],
)
def test_version_numbers_are_parsed(text: str, version: Version) -> None:
    assert parse_version(text) == version


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", "v", "V1.0.0", "vv1", "one", "1.", ".1", "1..2", "01.0.0", "1.02.0", "-1", "1.0.0-", "1.0.0+"),
        *(
            "1.0.0\n",
            " 1.0.0",
            "1,0",
            "1.0.0 beta",
            "v1beta1",
            "v1alpha3",
            "v1.DRAPlugin",
            "1000000000",
            "1.x",
            "\u0661.\u0662",
        ),
    ],
)
def test_an_invalid_version_number_is_rejected(text: str) -> None:
    assert rejection(lambda: parse_version(text)) == f"{text!r} is not a version number"


def test_versions_are_ordered_by_precedence() -> None:
    """Numbers are ordered by size, a pre-release precedes its release, as in Semantic Versioning 2.0.0 section 11."""
    in_order = [
        *("0.3.0", "0.9.0", "0.10.0", "1.0.0-1", "1.0.0-9", "1.0.0-10", "1.0.0-alpha", "1.0.0-alpha.1"),
        *("1.0.0-alpha.beta", "1.0.0-beta", "1.0.0-beta.2", "1.0.0-beta.11", "1.0.0-rc.1", "1.0.0"),
        *("1.0.1", "1.2.0", "1.9.0", "1.10.0", "2.0.0"),
    ]

    versions = [parse_version(text) for text in in_order]

    assert sorted(versions, key=lambda version: version.key) == versions
    assert all(lower < higher and not higher < lower for lower, higher in itertools.pairwise(versions))


def test_a_pre_release_with_a_number_too_long_for_an_int_can_be_compared() -> None:
    """Fault 75: invalid text raises only the declared error."""
    assert parse_version(f"1.0.0-{5000 * '9'}") < parse_version(f"1.0.0-1{5000 * '0'}")


def test_leading_zeros_of_a_number_in_a_pre_release_are_ignored() -> None:
    assert parse_version("1.0.0-rc.007") < parse_version("1.0.0-rc.10")


NUMBERS = st.lists(st.integers(min_value=0, max_value=10**9 - 1), min_size=3, max_size=8).map(tuple)
PRERELEASES = st.from_regex(r"[0-9a-c.-]{0,4}", fullmatch=True)
VERSIONS = st.builds(Version, NUMBERS, PRERELEASES)


@given(NUMBERS, NUMBERS)
def test_releases_compare_by_their_numbers(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    one, other = (parse_version(".".join(map(str, numbers))) for numbers in (left, right))

    assert one.numbers == left
    assert (one < other, one <= other, one == other) == (left < right, left <= right, left == right)


@examples(50)
@given(VERSIONS, VERSIONS, VERSIONS)
def test_versions_are_totally_ordered(a: Version, b: Version, c: Version) -> None:
    assert (a < b) + (b < a) + (a == b) == 1
    assert (a <= b) == (a < b or a == b)
    assert not (a < b and b < c) or a < c


@given(VERSIONS)
def test_a_version_is_formatted_as_it_was_parsed(version: Version) -> None:
    assert parse_version(str(version)) == version


@given(WORDS)
def test_any_text_is_parsed_as_a_version_or_rejected(text: str) -> None:
    """Fault 75."""
    assert rejection(lambda: parse_version(text)) in (None, f"{text!r} is not a version number")


TEXTS = VERSIONS.map(str) | st.sampled_from(["", "x", "v1.0.0", "2.0.0", "v2.1", "1", "1.2", *DRA_SERVICES]) | WORDS
SAID = st.lists(TEXTS, max_size=5).map(tuple)


def version_or_none(text: str) -> Version | None:
    try:
        return parse_version(text)
    except ValidationError:
        return None


@examples(60)
@given(SAID)
def test_the_highest_version_is_one_of_the_versions_and_below_none(versions: tuple[str, ...]) -> None:
    numbers = [number for number in map(version_or_none, versions) if number is not None]
    highest = highest_version(versions)
    assert (highest is None) == (not numbers)
    if highest is not None:
        assert highest in numbers
        assert all(number <= highest for number in numbers)


@examples(60)
@given(SAID)
def test_any_csi_driver_is_accepted_with_its_highest_version_below_two_or_rejected(versions: tuple[str, ...]) -> None:
    """Fault 75."""
    numbers = [number for number in map(version_or_none, versions) if number is not None and number.numbers[0] < 2]
    reason = rejection(lambda: check_csi_versions(versions))
    assert (reason is None) == bool(numbers)
    if reason is None:
        assert check_csi_versions(versions) == max(numbers, key=lambda number: number.key)
    else:
        assert all(repr(version) in reason for version in versions)


@examples(60)
@given(SAID)
def test_any_dra_driver_is_accepted_with_the_newest_service_that_it_names_or_rejected(
    versions: tuple[str, ...],
) -> None:
    """Fault 75."""
    reason = rejection(lambda: choose_dra_service(versions))
    named = [service for service in DRA_SERVICES if service in versions]
    old = any(version == "1" or version.startswith("1.") for version in versions)
    assert (reason is None) == bool(named or old)
    if reason is None:
        assert choose_dra_service(versions) == (named[0] if named else "v1beta1.DRAPlugin")


def test_the_highest_version_does_not_depend_on_the_order() -> None:
    assert highest_version(("0.9.0", "v0.10.0", "0.2.0")) == Version((0, 10, 0))


def test_invalid_versions_are_skipped_when_the_highest_is_chosen() -> None:
    assert highest_version(("1.0.0", "latest")) == Version((1, 0, 0))
    assert highest_version(("latest",)) is None
    assert highest_version(()) is None


# --- the rules of each type -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("versions", "highest"),
    [
        (("v1.0.0",), (1, 0, 0)),
        (("0.3.0",), (0, 3, 0)),
        (("0.2.0", "v0.3.0"), (0, 3, 0)),
        (("0.2.0", "v1.0.0"), (1, 0, 0)),
        (("0.2.0", "v1.2.3"), (1, 2, 3)),
        (("v1.2.3", "v0.3.0"), (1, 2, 3)),
        (("v1.0.0", "v2.0.0"), (1, 0, 0)),
        (("v2.0.0", "v1.9.9", "v10.0.0"), (1, 9, 9)),
        (("nonsense", "1.0.0"), (1, 0, 0)),
    ],
)
def test_a_csi_driver_speaks_its_highest_version_below_two(versions: tuple[str, ...], highest: tuple[int, ...]) -> None:
    """TestValidatePlugin: accepted versions. As in the reference, unsupported versions are skipped."""
    assert check_csi_versions(versions).numbers == highest


@pytest.mark.parametrize(
    ("versions", "reason"),
    [
        ((), "the CSI driver names no supported version"),
        (("",), "none of the CSI versions '' is a version number below 2"),
        (("2.0.0",), "none of the CSI versions '2.0.0' is a version number below 2"),
        (("v2.0.0", "v3.1.0"), "none of the CSI versions 'v2.0.0', 'v3.1.0' is a version number below 2"),
        (("boo", "foo"), "none of the CSI versions 'boo', 'foo' is a version number below 2"),
        (("nonsense", "2.0"), "none of the CSI versions 'nonsense', '2.0' is a version number below 2"),
    ],
)
def test_a_csi_driver_without_a_version_below_two_is_rejected(versions: tuple[str, ...], reason: str) -> None:
    """TestValidatePlugin: rejected versions."""
    assert rejection(lambda: check_csi_versions(versions)) == reason


@pytest.mark.parametrize(
    "name",
    [
        *("vendor.example/gpu", "example.com/a", "hardware/foo", "example.com/GPU_1.2-x", "a/b", "1.2/3"),
        f"example.com/{63 * 'a'}",
        f"{253 * 'a'}/gpu",
    ],
)
def test_an_extended_resource_has_a_domain_and_a_name(name: str) -> None:
    check_extended_resource(name)


FORM = "the resource name {!r} is not of the form vendor.domain/name"
DOMAIN = "the domain {!r} of the resource name {!r} is not a DNS name in lower case"
NOT_A_VENDORS = "the resource name {!r} lies in a domain that is not a vendor's"
LABEL = "the name {!r} in the resource name {!r} is not a label of at most 63 characters"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        *((name, FORM.format(name)) for name in ("", "cpu", "/gpu", "hugepages-2Mi")),
        *(
            (f"{domain}/gpu", DOMAIN.format(domain, f"{domain}/gpu"))
            for domain in ("Vendor.example", "vendor..example", "-a.example", "a-.example", "a_b", ".a", "a.", "a b")
        ),
        (f"{254 * 'a'}/gpu", DOMAIN.format(254 * "a", f"{254 * 'a'}/gpu")),
        *((name, NOT_A_VENDORS.format(name)) for name in ("kubernetes.io/gpu", "x.kubernetes.io/a", "requests.a/b")),
        *(
            (f"example.com/{label}", LABEL.format(label, f"example.com/{label}"))
            for label in ("", "-a", "a-", "_a", "a/b", "a b", "größe", 64 * "a")
        ),
    ],
)
def test_an_invalid_extended_resource_is_rejected_with_the_part_that_is_wrong(name: str, reason: str) -> None:
    """The reference: a device plugin's name must be an extended resource."""
    assert rejection(lambda: check_extended_resource(name)) == reason


@given(st.text())
def test_any_text_is_parsed_as_an_extended_resource_or_rejected(name: str) -> None:
    reason = rejection(lambda: check_extended_resource(name))
    assert repr(name) in reason if reason is not None else name.count("/") == 1


@pytest.mark.parametrize(
    ("versions", "service"),
    [
        (("v1.DRAPlugin",), "v1.DRAPlugin"),
        (("v1beta1.DRAPlugin",), "v1beta1.DRAPlugin"),
        (("v1.DRAPlugin", "v1beta1.DRAPlugin"), "v1.DRAPlugin"),
        (("v1beta1.DRAPlugin", "v1.DRAPlugin"), "v1.DRAPlugin"),
        (("v2.DRAPlugin", "v1beta1.DRAPlugin"), "v1beta1.DRAPlugin"),
        (("1.0.0",), "v1beta1.DRAPlugin"),
        (("1",), "v1beta1.DRAPlugin"),
        (("2.0.0", "1.0.0"), "v1beta1.DRAPlugin"),
    ],
    ids=["current", "old", "two", "two-reversed", "one-known", "old-version", "old-version-short", "old-among-others"],
)
def test_the_newest_dra_service_that_both_sides_support_is_chosen(versions: tuple[str, ...], service: str) -> None:
    """TestRegistrationHandler: current service, two services, old service."""
    assert choose_dra_service(versions) == service


@pytest.mark.parametrize(
    ("versions", "reason"),
    [
        ((), "the DRA driver names no supported service"),
        (
            ("some-other-service",),
            "none of the DRA services v1.DRAPlugin, v1beta1.DRAPlugin is among 'some-other-service'",
        ),
        (("2.0.0", "v1"), "none of the DRA services v1.DRAPlugin, v1beta1.DRAPlugin is among '2.0.0', 'v1'"),
    ],
    ids=["no-services", "wrong-service", "wrong-version"],
)
def test_a_dra_driver_without_a_supported_service_is_rejected(versions: tuple[str, ...], reason: str) -> None:
    """TestRegistrationHandler: no services, wrong version."""
    assert rejection(lambda: choose_dra_service(versions)) == reason


def test_a_socket_is_in_no_deprecated_directory_by_default() -> None:
    """Behaviour 16."""
    assert not Plugin("T", "a", SOCKET, ("1.0.0",), SOCKET, 1).found_in_deprecated_dir


def test_the_built_in_types_and_services_are_those_of_the_reference() -> None:
    """Behaviour 41."""
    assert BUILT_IN_TYPES == ("CSIPlugin", "DevicePlugin", "DRAPlugin")
    assert DRA_SERVICES == ("v1.DRAPlugin", "v1beta1.DRAPlugin")
