"""The version of plugind. The package's metadata and its public names both read it here.

PYTEST_DONT_REWRITE
"""

__version__ = "0.1.0"
