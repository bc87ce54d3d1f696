"""All that waits."""
