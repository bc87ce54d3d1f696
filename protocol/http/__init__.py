"""Requests of the usual form, which are read at one look."""
