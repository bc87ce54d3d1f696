"""Clients of a running daemon: :class:`SyncClient` and :class:`Client` of ``plugind.client``.

Both send the same :mod:`.requests`, which know how to ask and how to read the answer, and no socket.
"""
