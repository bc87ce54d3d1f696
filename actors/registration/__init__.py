"""The registration actors: one for each path of a socket, and what they need.

A registration is one coroutine, from the appearance of a socket to its end: a task reads :mod:`.actor` from top to
bottom, and :mod:`.tries` for what one try does. It is sent what is the case at its path by the reconciler, claims the
name of its plugin there, calls the plugin and the handler, and reports each change to the status actor.

Answers for behaviours 20 to 45 and faults 28 to 49, 71 and 85. The rules are in ``plugind.protocol.registration``.
"""
