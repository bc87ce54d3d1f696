"""gRPC over HTTP/2 without I/O, and without any code about plugins.

PYTEST_DONT_REWRITE
"""
