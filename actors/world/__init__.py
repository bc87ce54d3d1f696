"""The reconciler, the only owner of the desired and of the actual plugins.

Watchers, registrations and callers report to it. It starts registrations and tells them what changes at their paths.
The rules are in ``plugind.protocol.world``.
"""
