"""A DRA driver as a user of kubernetes-pydra would write it: ``python pydra_plugin.py SOCKET NAME ENDPOINT``."""

import asyncio
import json
import logging
import os
import sys

import grpc
from pydra.core.generated.pluginregistration import pluginregistration_pb2
from pydra.core.server import DraNodeServer


class Driver(DraNodeServer):  # type: ignore[misc] # pydra publishes no types
    def get_devices(self) -> list[str]:
        return ["chip-0"]

    async def prepare_hardware(self, claim_uid: str, namespace: str, name: str) -> list[str]:
        if name == "broken":
            raise RuntimeError("chip-0 is broken")
        return ["example.com/chip=chip-0"]

    async def unprepare_hardware(self, claim_uid: str, namespace: str, name: str) -> None:
        pass

    async def NotifyRegistrationStatus(  # noqa: N802 - the service names it
        self, request: pluginregistration_pb2.RegistrationStatus, context: grpc.aio.ServicerContext
    ) -> pluginregistration_pb2.RegistrationStatusResponse:
        answer = await super().NotifyRegistrationStatus(request, context)
        line = {
            "call": "NotifyRegistrationStatus",
            "plugin_registered": request.plugin_registered,
            "error": request.error,
        }
        os.write(1, json.dumps(line).encode() + b"\n")
        return answer


def main(socket: str, name: str, endpoint: str) -> None:
    # The log of pydra helps when a test fails.
    logging.basicConfig(level=logging.INFO)
    asyncio.run(Driver(name, endpoint, registration_socket_path=socket).serve())


if __name__ == "__main__":
    main(*sys.argv[1:])
