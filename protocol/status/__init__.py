"""The view of all sockets, made of the actors' reports, and its JSON and metrics.

Answers for behaviours 37 and 39 and faults 79 to 92.
"""
