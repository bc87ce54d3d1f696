"""The calls of a DRA driver for resource claims, and the checks of its answers. Error texts are the kubelet's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..errors import PluginError
from ..text import cut, escaped
from ..values import value

#: Seconds that a call to a driver may take.
CALL_TIMEOUT = 45.0
#: Characters of a driver's error that are kept (fault 94).
MAX_ERROR = 1024


@value
class DRAClaim:
    """A claim to devices. Most drivers look up the claimed devices by its name at an API server."""

    namespace: str
    uid: str
    name: str


@value
class PreparedDevice:
    """A device that a driver has prepared for a claim."""

    #: The requests of the claim that the device is for; empty means all of them.
    requests: tuple[str, ...]
    pool: str
    device: str
    #: The CDI devices that a container needs to use the device.
    cdi_devices: tuple[str, ...]
    #: The share of the device, if the device is shared between claims.
    share_id: str | None = None


#: The devices of each claim, by its uid.
Prepared = dict[str, tuple[PreparedDevice, ...]]


class DRAError(PluginError):
    """A DRA driver cannot do what it was asked; the text is the reason."""


class DRADriverUnknownError(DRAError):
    """No driver of that name is registered."""


class DRACallError(DRAError):
    """The call has failed: there is no connection, no answer in time, or the driver has refused the call."""


class DRAAnswerError(DRAError):
    """The answer does not match the claims of the call: it has an unknown claim, or too few claims."""


class DRAClaimError(DRAError):
    """The driver has failed for one claim. Whether it succeeded for the others is not known."""

    def __init__(self, text: str, claim: DRAClaim) -> None:
        super().__init__(text)
        self.claim = claim


def check_known(name: str, *, is_known: bool) -> None:
    """Check that a driver can be called by its name.

    Raises:
      DRADriverUnknownError: if the name is empty or not known.
    """
    if not name:
        raise DRADriverUnknownError("DRA driver name is empty")
    if not is_known:
        raise DRADriverUnknownError(f"DRA driver {name} is not registered")


def check_claims(claims: Sequence[DRAClaim]) -> dict[str, DRAClaim]:
    """Return ``claims`` by uid.

    Raises:
      ValueError: if two have the same uid.
    """
    by_uid = {claim.uid: claim for claim in claims}
    if len(by_uid) != len(claims):
        raise ValueError("two claims have the same uid: name each claim once")
    return by_uid


def check_answer(method: str, claims: Mapping[str, DRAClaim], errors: Mapping[str, str]) -> None:
    """Check the answer to ``method`` for ``claims``: ``errors`` has the error of each claim in it, empty for none.

    Raises:
      DRAAnswerError: if it has an unknown claim, or lacks a claim.
      DRAClaimError: if the driver has failed for a claim.
    """
    # A protobuf map has no order. Sorting makes the same answer always give the same error.
    for uid, error in sorted(errors.items()):
        claim = claims.get(uid)
        if claim is None:
            raise DRAAnswerError(f"{method} returned result for unknown claim UID {_words(uid)}")
        if error:
            raise DRAClaimError(f"{method} failed for ResourceClaim {claim.name}: {_words(error)}", claim)
    if len(errors) < len(claims):
        raise DRAAnswerError(f"{method} skipped {len(claims) - len(errors)} ResourceClaims")


def _words(text: str) -> str:
    return cut(escaped(text), MAX_ERROR)
