"""A node as a whole: its parts, the supervision of its actors, and what a reload changes.

``plugind.supervisor``, the interface for embedding programs, stands above this room (fault 85).
"""
