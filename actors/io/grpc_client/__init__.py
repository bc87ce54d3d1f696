"""The client half of gRPC on Trio.

PYTEST_DONT_REWRITE
"""
