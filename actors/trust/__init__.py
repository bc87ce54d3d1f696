"""Trust: what the system says of users, and of who may write to a directory (fault 3).

The rules are in ``plugind.protocol.trust``.
"""
