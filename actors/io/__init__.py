"""Access to descriptors, threads and the system's files, except for discovery, gRPC and HTTP.

Nothing here depends on actors: files, sockets and their peers, processes, and the database of the state.
"""
