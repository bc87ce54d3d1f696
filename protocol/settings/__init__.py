"""The settings of a daemon: a key for each, how its value is written, and which of several values is in force.

PYTEST_DONT_REWRITE
"""
