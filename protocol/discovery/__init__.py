"""The rules of discovery: which sockets are there, by generation, and where to look.

:mod:`.sockets` alone decides whether a socket is new. Answers for behaviours 8 to 13 and faults 6 to 26.
"""
