"""Counts the bytecodes that this thread executes, and the calls of each function."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

#: Where the package is.
ROOT = Path(__file__).parent.parent


class Tracer:
    """Counts bytecodes, by the module and the function of their code, and how often each is called or resumed."""

    def __init__(self) -> None:
        self.codes: Counter[CodeType] = Counter()
        self.calls: Counter[CodeType] = Counter()

    def __call__(self, frame: FrameType, event: str, _: object) -> Callable[..., Any]:
        """See ``sys.settrace``."""
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        codes, code = self.codes, frame.f_code
        self.calls[code] += 1

        def local(_frame: FrameType, event: str, _argument: object) -> Any:
            if event == "opcode":
                codes[code] += 1
            return local

        return local

    @contextmanager
    def tracing(self) -> Iterator[None]:
        """Trace this thread."""
        before = sys.gettrace()
        sys.settrace(self)
        try:
            yield
        finally:
            sys.settrace(before)

    def own(self, times: float) -> list[CodeType]:
        """Return the functions of plugind that are called at least so often."""
        return [code for code, calls in self.calls.items() if calls >= times and is_own(code)]

    def modules(self) -> Counter[str]:
        """Return the bytecodes of each module."""
        found: Counter[str] = Counter()
        for code, count in self.codes.items():
            found[_module_of(code)] += count
        return found

    def functions(self) -> Counter[str]:
        """Return the bytecodes of each function."""
        found: Counter[str] = Counter()
        for code, count in self.codes.items():
            found[f"{_module_of(code)}:{code.co_qualname}"] += count
        return found


def is_own(code: CodeType) -> bool:
    """Whether the code is that of plugind, and not of its benchmarks, its tests or its simulation."""
    module = _module_of(code)
    return module.startswith(("actors/", "protocol/", "supervisor.py")) and not module.startswith("actors/simulation/")


def _module_of(code: CodeType) -> str:
    path = Path(code.co_filename)
    if path.is_relative_to(ROOT) and ".venv" not in path.parts:
        return str(path.relative_to(ROOT))
    parts = path.parts
    return "/".join(parts[parts.index("site-packages") + 1 :]) if "site-packages" in parts else path.name
