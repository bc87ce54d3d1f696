"""The .proto files and the code generated from them; ``regenerate.py`` generates it, ``pool.py`` has its pool.

Every plugin implements ``pluginregistration``; the examples and ``plugind fake`` implement ``example_*``. The
built-in handlers call ``csi_v1``, ``deviceplugin_v1beta1``, ``dra_*``, ``dra_health_*`` and ``health_v1``.
"""
