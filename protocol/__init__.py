"""What is true without a clock, a socket or a scheduler.

PYTEST_DONT_REWRITE
"""
