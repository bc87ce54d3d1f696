"""Leases: devices are granted to owners, and are free again when these end.

The lease actor is the only owner of the book. It has grants saved before it tells of them, is told by owners' processes
that they have ended, and has CDI files and the history written. The status socket and the embedding program ask it for
leases; plugins are called by followers of ``plugind.actors.devices``.

The rules are in ``plugind.protocol.leases``.
"""
