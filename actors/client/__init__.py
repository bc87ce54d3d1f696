"""Clients of a running daemon: :class:`SyncClient` and :class:`Client` of ``plugind.client``.

All is written once, with ``async def``: :class:`SyncClient` runs the methods of :class:`Client` with a backend that
blocks instead of waiting (:mod:`plugind.actors.http.backends`). The :mod:`.requests` know how to ask and how to read
the answer, and no socket.
"""
