"""Other ways to build the daemon, in their plainest form, so that ratios are meaningful on any machine."""
