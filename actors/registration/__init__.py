"""The registration actors, one for each socket path, and what they need.

A registration is one coroutine, from the appearance of a socket to its end: :mod:`.actor` is its main loop, and
:mod:`.tries` is what one try does. The reconciler sends it the changes at its path and admits its plugin to a name. The
actor calls the plugin and the handler, and reports each change to the status actor.

Answers for behaviours 20 to 45 and faults 28 to 49, 71 and 85. The rules are in ``plugind.protocol.registration``.
"""
