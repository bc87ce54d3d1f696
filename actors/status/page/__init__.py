"""The page of a node in a browser: its files, and the server of ``plugind page``, which asks the daemon."""
