"""The rules of leases: which device is given to whom, and until when.

:mod:`.book` decides, event by event, and returns what is to be done.
"""
