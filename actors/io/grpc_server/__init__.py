"""The server half of gRPC on Trio."""
