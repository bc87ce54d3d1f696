"""Discovery: which sockets are below the roots.

Each root has one watcher. Its scanner looks at the whole root from time to time, and in between at the names that
inotify's events are about. The watcher reports to the reconciler which sockets are there, by generation, and to the
status actor the state of the root. A root is locked, so that no other daemon registers its plugins.

Answers for behaviours 1 to 16 and faults 1 to 27. The rules are in ``plugind.protocol.discovery``.
"""
