"""Random scripts against a simulated node.

PYTEST_DONT_REWRITE
"""
