"""The log: lines on standard error or entries in the journal, written by a task of its own.

No actor waits for the log, or fails because of it (fault 95). What is dropped is counted.
"""
