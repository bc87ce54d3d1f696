"""The lease actor and its parts: what it keeps over a restart, and how it finds out that owners have ended.

PYTEST_DONT_REWRITE
"""
