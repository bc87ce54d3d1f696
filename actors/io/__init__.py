"""What uses descriptors, threads and the system's files, beside discovery, gRPC and HTTP.

Nothing here knows of actors: files, sockets and their peers, processes, and the database of the state.
"""
