"""The messages of each inbox, as closed unions of frozen values; a module for each inbox that several rooms send to.

Events are in the past tense, requests in the imperative. ``plugind.actors`` shows which messages go where. The messages
of the devices actor and of the lease actor are in their rooms.
"""
