"""The registration actors: one per socket path, and what they need.

PYTEST_DONT_REWRITE
"""
