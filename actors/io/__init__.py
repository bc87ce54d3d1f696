"""The only modules that use descriptors.

PYTEST_DONT_REWRITE
"""
