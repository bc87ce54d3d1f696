"""The build step that pyproject.toml cannot express: installed modules opt out of pytest's assertion rewriting.

plugind has a pytest plugin, so pytest would rewrite every module of an installed plugind in the test sessions of its
users. A module opts out by a word in its docstring. The step adds that word, on the docstring's last line, to the
copies that go into a wheel; the sources stay as they are, and so do line numbers.
"""

import ast
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

OPT_OUT = "PYTEST_DONT_REWRITE"


class BuildPy(build_py):
    """Copies modules and adds the word to their docstrings."""

    def find_package_modules(self, package, package_dir):
        """List the modules of a package. The repository's root is a package, but this file is no part of it."""
        return [found for found in super().find_package_modules(package, package_dir) if found[1] != "setup"]

    def build_module(self, module, module_file, package):
        """Copy one module."""
        copied = super().build_module(module, module_file, package)
        target = Path(copied[0])
        text = target.read_text()
        if OPT_OUT not in (ast.get_docstring(ast.parse(text)) or ""):
            target.write_text(opted_out(text))
        return copied


def opted_out(text: str) -> str:
    """Return the source ``text`` with the word in its docstring, which is made where there is none."""
    if ast.get_docstring(ast.parse(text)) is None:
        return f'"""{OPT_OUT}"""\n{text}'
    docstring = ast.parse(text).body[0]
    lines = text.splitlines(keepends=True)
    last = lines[docstring.end_lineno - 1]
    # Columns of the syntax tree count bytes.
    before = last.encode()[: docstring.end_col_offset - len('"""')].decode()
    lines[docstring.end_lineno - 1] = f"{before} {OPT_OUT}{last[len(before) :]}"
    return "".join(lines)


setup(cmdclass={"build_py": BuildPy})
