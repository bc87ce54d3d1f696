"""Leases: which device is given to whom, and until when. Decisions without any I/O.

PYTEST_DONT_REWRITE
"""
