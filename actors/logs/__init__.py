"""The log: lines on standard error or entries in the journal, which a separate task writes.

No actor waits for the log, or fails because of it (fault 95). Dropped lines are counted.
"""
