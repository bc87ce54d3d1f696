"""The handler of CSI drivers: it asks a driver who it is when it registers, and then how it is, again and again.

The rules are in ``plugind.protocol.handlers``.
"""
