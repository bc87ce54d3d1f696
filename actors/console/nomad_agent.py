"""What the API of the agent of Nomad on this machine says of the allocations of its node.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Final

import attrs

from ...protocol.nomad import NomadError
from ...protocol.nomad_allocations import Allocation, allocations, node_of
from ..io.http_get import HttpGetError, Origin, get

#: Seconds for each answer.
TIMEOUT: Final = 10.0
#: Bytes of the largest list of allocations, each of which comes with its job, and of what an agent says of itself.
MAX_LIST: Final = 32 * 1024 * 1024
MAX_SELF: Final = 1024 * 1024
_MAX_TOKEN: Final = 4096


@attrs.frozen
class NomadAgent:
    """The agent that answers at an address."""

    server: Origin
    #: Returns the secret of a token, empty for none; raises NomadError if it cannot be had.
    token: Callable[[], str]

    async def allocations(self) -> tuple[Allocation, ...]:
        """Ask for the allocations of the node.

        Raises:
          NomadError: if the agent does not tell; the text says why.
        """
        # The agent is asked each time: one whose data were deleted is another node.
        node = node_of(await self._content("/v1/agent/self", MAX_SELF))
        return allocations(await self._content(f"/v1/node/{node}/allocations", MAX_LIST))

    async def _content(self, path: str, most: int) -> object:
        secret = self.token()
        headers = {"X-Nomad-Token": secret} if secret else {}
        try:
            return json.loads(await get(self.server, path, headers, timeout=TIMEOUT, most=most))
        except HttpGetError as error:
            raise NomadError(f"Nomad's API does not tell (GET {path}): {error}") from error
        except (ValueError, RecursionError) as error:
            raise NomadError(f"Nomad's answer is no JSON (GET {path}): {error}") from error


def usable(secret: str) -> str:
    """Return the secret of a token without spaces around it.

    Raises:
      NomadError: if it is none. The secret is not in the text.
    """
    secret = secret.strip()
    if not all("!" <= letter <= "~" for letter in secret):
        raise NomadError("the token has letters that no token has")
    return secret


def of_file(path: str) -> str:
    """Return the secret of the token in a file, which is read each time: tokens are replaced.

    Raises:
      NomadError: if it cannot be read.
    """
    try:
        # A pipe without a writer would hold up the whole process.
        with open(path, "rb", opener=lambda name, how: os.open(name, how | os.O_NONBLOCK)) as file:
            # None of a pipe that has nothing yet.
            secret = (file.read(_MAX_TOKEN + 1) or b"").decode()
    except (OSError, ValueError) as error:
        raise NomadError(f"the token in {path} cannot be read: {error}") from error
    if not secret.strip() or len(secret) > _MAX_TOKEN:
        raise NomadError(f"{path} has no token")
    return usable(secret)
