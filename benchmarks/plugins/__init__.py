"""Plugins to measure with."""
