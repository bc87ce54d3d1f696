"""Health: whether somebody listens on a socket, whether an endpoint answers, and whether this daemon itself goes on.

The liveness actor looks at sockets at which nothing happens, and reports to registrations and to the status actor.
Endpoint checks call plugins that are registered. The watchdog finds out that the loop did not turn, and what kept it.

Answers for behaviour 15 and faults 39, 49 and 83 to 86. The rules are in ``plugind.protocol.health``.
"""
