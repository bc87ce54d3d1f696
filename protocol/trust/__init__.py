"""The rules of trust: which users may register plugins, and which directories are safe (faults 3 and 40)."""
