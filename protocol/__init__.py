"""The rules: all code that needs no clock, no socket and no scheduler.

A room has the name of the room in ``plugind.actors`` that uses it. All rooms use the modules beside them.
"""
