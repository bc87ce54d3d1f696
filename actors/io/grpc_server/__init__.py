"""The server half of gRPC on Trio.

PYTEST_DONT_REWRITE
"""
