"""The handler of CSI drivers: it asks a driver for its identity at registration, and then follows its health and facts.

The rules are in ``plugind.protocol.handlers``.
"""
