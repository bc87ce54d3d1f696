"""Device plugins: from a call of Register to the devices that leases can be granted.

The device server listens on ``kubelet.sock`` in the directory of device plugins, and reports to the reconciler the
plugins that call Register there. The handler of the type follows the lists of each plugin. The devices actor alone owns
what they list: followers report to it, and it reports to the lease actor what each resource offers.

The rules are in ``plugind.protocol.devices`` and ``plugind.protocol.plugins.devices``.
"""
