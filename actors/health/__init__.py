"""Health: whether somebody listens on a socket, whether an endpoint answers, and whether the daemon itself works.

The liveness actor looks at sockets that are not dialed, and reports to registrations and to the status actor. Endpoint
checks call registered plugins. The watchdog finds what blocked the loop.

Answers for behaviour 15 and faults 39, 49 and 83 to 86. The rules are in ``plugind.protocol.health``.
"""
