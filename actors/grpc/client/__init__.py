"""The client half: a connection is dialed once, and carries the calls of a registration or of a link.

Answers for faults 28 to 68, with the limits of ``plugind.protocol.wire.limits``.
"""
