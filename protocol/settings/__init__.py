"""The settings of a daemon: a key for each, how its value is written, and which of several values is in force.

:mod:`.config` is the configuration of a node that they make up, with its defaults.
"""
