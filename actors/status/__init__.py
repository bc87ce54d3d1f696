"""Status: the state of each socket, for people and programs.

The status actor owns the view. Other actors report to it, and it waits for none of them. It serves the status socket
and the metrics port, and writes the events to the log.

The rules are in ``plugind.protocol.status``.
"""
