"""The directories in which plugins are discovered."""

from __future__ import annotations

import os

import attrs


def without_slash(path: str | os.PathLike[str]) -> str:
    """Return ``path`` as text without a slash at its end."""
    text = os.fspath(path)
    return text.rstrip("/") or text[:1]


@attrs.frozen
class Root:
    """A directory in which plugins are discovered."""

    #: An absolute path. A :class:`pathlib.Path` is converted.
    path: str = attrs.field(converter=without_slash)
    #: Whether plugins found here get a warning, because drivers should use another directory (behaviour 16).
    deprecated: bool = False
    #: Whether others may write to it and to directories below it, and so register plugins. Otherwise such a root is
    #: refused, and such a directory is left out (fault 3).
    insecure: bool = False
    #: Whether the node works without it. A root that was never there is ``absent``, which is no error,
    #: and is watched once it is there.
    optional: bool = False
