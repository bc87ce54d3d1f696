"""The .proto files and the code generated from them; ``regenerate.py`` holds the command, ``pool.py`` where they live.

``pluginregistration`` is what every plugin speaks, ``example_*`` what the examples and ``plugind fake`` speak. The
consumers of CSI drivers, device plugins and DRA drivers that are being built call ``csi_v1``, ``deviceplugin_v1beta1``,
``dra_*``, ``dra_health_*`` and ``health_v1``; until then only tests import those.

PYTEST_DONT_REWRITE
"""
