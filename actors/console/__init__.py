"""The command `plugind`: one module for each of its commands."""
