"""The only modules that touch descriptors."""
