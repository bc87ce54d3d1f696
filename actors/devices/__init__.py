"""The devices actor: the only owner of what device plugins list.

PYTEST_DONT_REWRITE
"""
