"""gRPC over HTTP/2 without I/O, and without any code about plugins."""
