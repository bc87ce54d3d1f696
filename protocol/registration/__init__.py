"""The rules of a registration: how it fails, what follows, what ends a phase, and when it is tried again.

Answers for behaviours 12 to 42 and faults 28 to 87.
"""
