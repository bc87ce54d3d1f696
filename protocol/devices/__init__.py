"""The rules of device plugins: their calls of Register, their lists, and the resources that these make up.

:mod:`.resources` decides about lists, roles and losses; :mod:`.messages` has the messages of the devices actor.
"""
