"""The only modules that touch descriptors.

PYTEST_DONT_REWRITE
"""
