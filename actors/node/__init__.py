"""A node as a whole: what it is made of, how its actors are supervised, and what a reload changes.

``plugind.supervisor``, the interface for embedding programs, stands above this room (fault 85).
"""
