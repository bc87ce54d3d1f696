"""The version of plugind. The package's metadata and the public face both read it here."""

__version__ = "0.1.0"
