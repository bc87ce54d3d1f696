"""A CSI driver on grpcio's server: ``grpcio_plugin.py SOCKET NAME``.

It prints a JSON line when it listens, and for each call.
"""

import signal
import sys

from plugind.tests.end_to_end.plugins.grpcio_csi import registrar, say, serve, services


def main(socket: str, name: str) -> None:
    server = serve(socket, [registrar(name, ""), *services(name, "node-1")])
    say(listening=socket)
    signal.sigwait({signal.SIGTERM})
    server.stop(1).wait()


if __name__ == "__main__":
    # The signal is blocked before grpcio starts its threads, so that only the main thread takes it.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    main(*sys.argv[1:])
