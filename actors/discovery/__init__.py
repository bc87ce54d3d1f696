"""Discovery: which sockets are below the roots.

There is one watcher for each root. It has its scanner look at the whole root from time to time, and meanwhile at the
single names that inotify's events are about. It reports to the reconciler which sockets are there, by generation, and
to the status actor how the root is. A root is locked, so that no other daemon registers its plugins.

Answers for behaviours 1 to 16 and faults 1 to 27. The rules are in ``plugind.protocol.discovery``.
"""
