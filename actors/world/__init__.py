"""The world: the reconciler, which is the only owner of the desired and of the actual plugins.

Watchers, registrations and callers report to it; it starts registrations and tells them what is the case at their
paths. The rules are in ``plugind.protocol.world``.
"""
