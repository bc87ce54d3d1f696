"""Other ways to build the daemon, in their plainest form, so that a ratio can be had on any machine."""
