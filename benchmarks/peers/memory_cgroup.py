"""A memory cgroup for one process, of version 1 or 2."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

#: Where a group can be made, and the name of its limit.
_HIERARCHIES = (
    (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"),
    (Path("/sys/fs/cgroup"), "memory.max"),
)


class NoCgroupError(Exception):
    """No memory cgroup can be made here."""


@contextmanager
def memory_cgroup(mib: int) -> Iterator[list[str]]:
    """Yield the beginning of a command that runs in a memory cgroup of this size; the kernel kills what exceeds it.

    Raises:
      NoCgroupError: if there is no such hierarchy, or it cannot be written to.
    """
    group, limit = _make()
    try:
        try:
            (group / limit).write_text(str(mib << 20))
        except OSError as error:
            raise NoCgroupError(f"the limit of {group} cannot be set: {error}") from error
        # The shell enters the group, so that the memory of the interpreter's start counts too.
        yield ["/bin/sh", "-c", 'echo $$ > "$0" && exec "$@"', str(group / "cgroup.procs")]
    finally:
        group.rmdir()


def _make() -> tuple[Path, str]:
    failures = []
    for hierarchy, limit in _HIERARCHIES:
        group = hierarchy / f"plugind-benchmark-{os.getpid()}"
        try:
            group.mkdir()
        except OSError as error:
            failures.append(str(error))
            continue
        if (group / limit).exists():
            return group, limit
        group.rmdir()
        failures.append(f"{hierarchy} has no {limit}")
    raise NoCgroupError(f"run as root where cgroups can be made: {'; '.join(failures)}")
