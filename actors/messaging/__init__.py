"""What carries messages: inboxes, who subscribes to changes, one answer for one asker, and shared timers."""
