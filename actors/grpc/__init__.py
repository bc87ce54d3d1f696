"""gRPC on Trio: a client for plugins and their endpoints, and the server that device plugins call.

Both halves move bytes and have deadlines; ``plugind.protocol.wire`` has the frames. An endpoint is opened by the file
that was judged, not by its name, which may lead to another file by then (fault 41).
"""
