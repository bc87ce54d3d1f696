"""Device plugins: from a call of Register to the devices that leases can get.

The device server listens on ``kubelet.sock`` in the directory of device plugins, and reports the plugins that call
Register there to the reconciler. The handler follows the lists of each plugin and sends them to the devices actor,
which owns them and reports the offer of each resource to the lease actor.

Static devices need no plugin: :mod:`.static` looks for the nodes that the configuration names, and tells the devices
actor of them.

The rules are in ``plugind.protocol.devices`` and ``plugind.protocol.plugins.devices``.
"""
