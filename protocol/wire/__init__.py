"""gRPC over HTTP/2 without I/O; nothing here knows what a plugin is.

PYTEST_DONT_REWRITE
"""
