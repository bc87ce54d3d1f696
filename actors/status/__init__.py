"""The status actor: the view, what commands ask of it, health and metrics.

PYTEST_DONT_REWRITE
"""
