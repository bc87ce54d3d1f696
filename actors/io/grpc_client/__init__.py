"""The client half of gRPC on Trio."""
