"""The handler of DRA drivers: it connects to their instances, and prepares and unprepares claims on demand.

The rules are in ``plugind.protocol.handlers``.
"""
