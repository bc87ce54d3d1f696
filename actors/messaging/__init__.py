"""Carries messages: inboxes, subscribers to changes, calls of the embedding program, and timers."""
