"""gRPC on Trio: a client for plugins and their endpoints, and the server that device plugins call.

Both halves move bytes, and have their deadlines; the frames are those of ``plugind.protocol.wire``. An endpoint is
opened by the file that was judged, and not by a name that may lead to another file by then (fault 41).
"""
