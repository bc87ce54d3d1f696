"""What carries messages: inboxes, who subscribes to changes, and shared timers."""
