"""A node as a whole: how its actors are supervised, which ports and paths they have, and what connects them.

The supervisor, in ``plugind.supervisor``, stands above this room and is the only one that starts it (fault 85).
"""
