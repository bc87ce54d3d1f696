"""The rules of devices: calls of Register, the lists of plugins, static devices, and the resources that they make up.

:mod:`.resources` decides about lists, roles and losses; :mod:`.messages` has the messages of the devices actor.
"""
