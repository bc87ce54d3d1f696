"""Handlers: what a consumer implements, how registrations call it, and the links to plugins that are registered.

:mod:`.handler` is the interface. A handler is no actor: a registration calls it in its own task, one call at a time for
each name, each with a deadline. A handler that follows its plugins is given a link to each of them, which carries calls
to the plugin, and the handler's reports to the status actor and the reconciler.

Answers for behaviours 21, 22 and 37 and faults 80 to 83. The built-in handlers are in the rooms ``csi`` and ``dra`` and
in ``plugind.actors.devices``.
"""
