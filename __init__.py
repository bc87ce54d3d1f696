"""plugind discovers plugin sockets on a node and registers each with the consumer of its type."""
