"""Handlers: the interface of consumers, the calls that registrations make to them, and the links to registered plugins.

:mod:`.handler` is the interface. A handler is no actor: a registration calls it in its own task, one call at a time for
each name, each with a deadline. A handler that follows its plugins gets a link to each of them, which carries calls to
the plugin, and the handler's reports to the status actor and the reconciler.

Answers for behaviours 21, 22 and 37 and faults 80 to 83. The built-in handlers are in the rooms ``csi`` and ``dra`` and
in ``plugind.actors.devices``.
"""
