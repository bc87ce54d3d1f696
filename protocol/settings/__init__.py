"""The settings of a daemon: their keys, the forms of their values, and which of several values is in force.

:mod:`.config` is the configuration of a node that they make up, with its defaults.
"""
