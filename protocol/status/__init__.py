"""The view of all sockets, made of what actors report, and its JSON and metrics.

Answers for behaviours 37 and 39 and faults 79 to 92.
"""
