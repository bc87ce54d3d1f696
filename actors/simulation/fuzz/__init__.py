"""Random scripts against a simulated node."""
