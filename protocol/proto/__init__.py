"""The .proto files and the code generated from them; ``regenerate.py`` generates it, ``pool.py`` has its pool.

Every plugin implements ``pluginregistration``; the examples and ``plugind fake`` implement ``example_*``. Future
consumers of CSI drivers, device plugins and DRA drivers will call ``csi_v1``, ``deviceplugin_v1beta1``,
``dra_*``, ``dra_health_*`` and ``health_v1``; until then only tests import those.
"""
