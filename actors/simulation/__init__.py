"""The test kit: a simulated node, scripted plugins and handlers, and ports that fail on request.

:mod:`plugind.testing` is its public module, and :mod:`.node` explains how it works.
"""
