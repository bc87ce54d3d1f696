"""All code that needs no clock, no socket and no scheduler.

PYTEST_DONT_REWRITE
"""
