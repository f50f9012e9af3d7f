"""The source tree as data: modules, their lines, their imports and their public classes.

`make lint` prints the counts and tests/unit/test_house.py holds the rules of CONTRIBUTING against them.
"""

from __future__ import annotations

import ast
import json
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

__all__ = ["SOURCE", "Import", "SourceTree", "import_seconds", "loaded_modules"]

SOURCE = Path(__file__).parents[1] / "src" / "twiceproof"
LOADED = "import sys, json; {}; print(json.dumps([name for name in sys.modules if name.startswith('twiceproof')]))"
TIMED = "import time; before = time.perf_counter(); {}; print(time.perf_counter() - before)"


class Import(NamedTuple):
    """One module of the package imports another."""

    importer: str
    imported: str
    at_load: bool  # False: inside a function, or for the type checker alone


class SourceTree:
    """Every module of the package below `source`, by its dotted name."""

    def __init__(self, source: Path = SOURCE) -> None:
        self.source = source
        self.paths: Mapping[str, Path] = {self._name(path): path for path in sorted(source.rglob("*.py"))}

    def _name(self, path: Path) -> str:
        parts = path.relative_to(self.source.parent).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    @cached_property
    def trees(self) -> Mapping[str, ast.Module]:
        return {name: ast.parse(path.read_text("utf-8")) for name, path in self.paths.items()}

    @cached_property
    def lines(self) -> Mapping[str, int]:
        return {name: len(path.read_text("utf-8").splitlines()) for name, path in self.paths.items()}

    @cached_property
    def imports(self) -> set[Import]:
        return {found for name in self.paths for found in self._imports_of(name)}

    def importers(self, name: str) -> set[str]:
        """The modules that import this one, at load or later."""
        return {found.importer for found in self.imports if found.imported == name}

    def public_classes(self) -> Iterator[tuple[str, str]]:
        """Every public class at the top of a module: its name, and the module."""
        for module, tree in self.trees.items():
            for node in tree.body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    yield node.name, module

    def _imports_of(self, name: str) -> Iterator[Import]:
        top = {id(node) for node in self.trees[name].body}
        for node in ast.walk(self.trees[name]):
            if isinstance(node, ast.ImportFrom) and node.level:
                for imported in self._targets(name, node):
                    yield Import(name, imported, at_load=id(node) in top)

    def _targets(self, name: str, node: ast.ImportFrom) -> Iterator[str]:
        """The modules that a relative import names: `from ..keys import key` is keys.key, not keys."""
        package = name.split(".")
        if self.paths[name].name != "__init__.py":
            package = package[:-1]
        base = package[: len(package) - node.level + 1]
        module = ".".join([*base, *([node.module] if node.module else [])])
        for alias in node.names:
            inner = f"{module}.{alias.name}"
            target = inner if inner in self.paths else module
            if target in self.paths and target != name:
                yield target

    def load_cycles(self) -> list[set[str]]:
        """Groups of modules that import one another while they are loaded."""
        reachable = {name: self._reachable(name) for name in self.paths}
        groups = [
            frozenset({name, *(other for other in reachable[name] if name in reachable[other])})
            for name in self.paths
            if name in reachable[name]
        ]
        return [set(group) for group in dict.fromkeys(groups)]

    def _reachable(self, start: str) -> set[str]:
        seen: set[str] = set()
        open_ends = [start]
        while open_ends:
            found = self._loads.get(open_ends.pop(), set()) - seen
            seen |= found
            open_ends += found
        return seen

    @cached_property
    def _loads(self) -> Mapping[str, set[str]]:
        loads: dict[str, set[str]] = {}
        for found in self.imports:
            if found.at_load:
                loads.setdefault(found.importer, set()).add(found.imported)
        return loads

    def counts(self) -> Iterator[tuple[str, str]]:
        """What `make lint` prints about the tree."""
        lengths = sorted(self.lines.values())
        written = [length for name, length in self.lines.items() if self.paths[name].name != "__init__.py"]
        yield "source files", str(len(lengths))
        yield "lines", f"{sum(lengths):,}"
        yield "median lines", f"{statistics.median(lengths):g}"
        yield "median lines, without __init__", f"{statistics.median(written):g}"
        yield "longest file", str(lengths[-1])


def loaded_modules(code: str = "from twiceproof import App") -> list[str]:
    """The modules of ours that this code loads in a fresh process."""
    names: list[str] = json.loads(_output(LOADED.format(code)))
    return names


def import_seconds(code: str = "from twiceproof import App", attempts: int = 5) -> float:
    """The shortest time that this code took in a fresh process."""
    return min(float(_output(TIMED.format(code))) for _ in range(attempts))


def _output(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
