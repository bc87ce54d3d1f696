"""Other designs of the daemon and of its client in their simplest form, to compare with on the same machine."""
