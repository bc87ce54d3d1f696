"""Trust: the system's answers about users, and about who may write to a directory (fault 3).

The rules are in ``plugind.protocol.trust``.
"""
