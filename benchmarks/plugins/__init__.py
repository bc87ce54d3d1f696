"""Plugins for the measurements."""
