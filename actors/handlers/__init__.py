"""One actor per plugin type, and the handlers that come with plugind.

PYTEST_DONT_REWRITE
"""
