"""A DRA driver on grpc-go, made from plugind's .proto files: ``dra_driver [options] NAME REGISTRY DIRECTORY``.

It has its sockets where the Go helper of Kubernetes, ``kubeletplugin.Start``, has them, in the same order: first its
services at ``DIRECTORY/dra.sock``, and then its registrar at ``REGISTRY/NAME-reg.sock``. SIGTERM stops them in that
order, too. The helper itself is in no package of Debian. Options:

``-uid U``
    The instance U of a rolling update: ``dra-U.sock`` and ``NAME-U-reg.sock``. The instances use one ``serialize.lock``
    in DIRECTORY, so that their calls do not overlap.
``-late``
    It listens at its endpoint once it reads the command ``listen``.
``-versions A,B``
    What it announces, in the place of what the helper of 1.36 does. It serves both versions of each service.

It prepares any claim. Of one that is named ``broken`` it says that this failed, and for one that is named ``missing``
the call ends with an error. Commands, one in a line on its standard input: ``listen``, ``healthy POOL/DEVICE``, and
``unhealthy POOL/DEVICE TEXT``. It prints a line of JSON when it listens, and for each call::

    {"listening": "DIRECTORY/dra.sock"}
    {"call": "NotifyRegistrationStatus", "plugin_registered": true, "error": ""}
    {"call": "NodePrepareResources", "service": "v1.DRAPlugin", "claims": ["uid-1"]}
    {"call": "NodeWatchResources", "service": "v1alpha1.DRAResourceHealth"}
"""

from __future__ import annotations

from pathlib import Path

import attrs

from plugind.tests.end_to_end.go_programs import go_program


@attrs.frozen
class GoDriver:
    """One instance of the driver."""

    name: str
    registry: Path
    directory: Path
    uid: str = ""

    @property
    def socket(self) -> Path:
        """Where its registrar listens."""
        return self.registry / f"{self.name}{self._part}-reg.sock"

    @property
    def endpoint(self) -> Path:
        """Where its services listen."""
        return self.directory / f"dra{self._part}.sock"

    @property
    def _part(self) -> str:
        return f"-{self.uid}" if self.uid else ""

    def command(self, *options: str) -> list[str]:
        """Return its command; skip the test where Go is missing."""
        instance = ["-uid", self.uid] if self.uid else []
        return [go_program("dra_driver"), *instance, *options, self.name, str(self.registry), str(self.directory)]
