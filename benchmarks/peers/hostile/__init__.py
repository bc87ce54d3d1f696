"""Hostile plugins of many kinds: each process serves all sockets of one kind, as cheaply as Python can.

``kinds.py`` lists the kinds, ``server.py`` is the loop that they share, ``floods.py`` has the bytes that they send, and
``process.py`` runs one of them as a child process.
"""
