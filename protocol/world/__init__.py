"""The desired and the actual world, and who has a name and an endpoint.

:mod:`.worlds` returns the effects that the reconciler carries out. Answers for behaviours 19, 20 and 37 and faults 49,
79, 80 and 85.
"""
