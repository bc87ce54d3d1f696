"""The rules of a registration that need no clock and no network: how it fails, what follows, and what ends a phase.

PYTEST_DONT_REWRITE
"""
