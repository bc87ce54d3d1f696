"""Status: what is known of each socket, for people and programs.

The status actor is the only owner of the view. Actors report to it and it waits for none. It serves the status socket
and the port of the metrics, and writes the events to the log.

The rules are in ``plugind.protocol.status``.
"""
