"""The form of a line of the log and of an entry of the journal, and how many lines there are of one thing."""
