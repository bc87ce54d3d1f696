"""The form of log lines and journal entries, and the limits on similar lines."""
