"""YAML as data with places: every key and value knows its line and column.

Of YAML 1.2 only the types of JSON are read: `on`, `yes` and `no` stay text, `010` stays text, and `1.10` keeps its
digits. Tags, merge keys and duplicate keys are refused, and aliases are limited, so that a short file cannot expand
into a large one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import Decimal
from importlib.util import find_spec
from pathlib import Path as FilePath
from typing import Any, Literal

from msgspec import Struct

from ..errors import Misuse

__all__ = ["Document", "Level", "LintProblem", "Place", "parse", "read_utf8"]


Path = tuple[str | int, ...]

MOST_BYTES = 1_000_000
MOST_NODES = 20_000
MOST_ALIASES = 100
DEEPEST = 64

_INT = re.compile(r"-?(?:0|[1-9][0-9]*)")
_FLOAT = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
_FIELD = re.compile(r"[A-Za-z_][\w.\[\]]*")
WORDS: dict[str, bool | None] = {"null": None, "~": None, "": None, "true": True, "false": False}


class Place(Struct, frozen=True, order=True):
    """A line and a column, both counted from one."""

    line: int = 1
    column: int = 1


Level = Literal["error", "warning"]


class LintProblem(Struct, frozen=True):
    """One problem of a file: the rule, what was found, and what to write instead. A file with a warning can be run."""

    rule: str
    place: Place
    found: str
    instead: str = ""
    level: Level = "error"


class Document(Struct, frozen=True):
    """A file's data, the place of each part, and the problems of its YAML."""

    data: Any
    places: dict[Path, Place]
    problems: tuple[LintProblem, ...] = ()

    def place(self, path: Path) -> Place:
        """Return the place of a part; if that is not known, the place of the nearest enclosing part."""
        while path and path not in self.places:
            path = path[:-1]
        return self.places.get(path, Place())


def read_utf8(file: FilePath) -> str:
    """Return a file's text. Editors may save it in another encoding, which would garble names. Raises Misuse."""
    try:
        return file.read_text("utf-8")
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise Misuse(f"{file}:{line}: the file is not in UTF-8; save it anew with this encoding.") from None


def parse(text: str) -> Document:
    """Parse a file. Never raises: errors are in the document's problems."""
    if find_spec("yaml") is None:
        raise Misuse("Flows in files need PyYAML, which is not installed; run: pip install 'twiceproof[files]'")
    if len(text.encode()) > MOST_BYTES:
        return Document(None, {}, (LintProblem("yaml", Place(), "the file is larger than a megabyte", "split it"),))
    import yaml

    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        return Document(None, {}, (_syntax(error, text),))
    except RecursionError:
        return Document(None, {}, (LintProblem("yaml", Place(), "values are nested too deeply"),))
    reader = _Reader()
    data = None if root is None else reader.read(root, (), 0)
    return Document(data, reader.places, tuple(reader.problems))


# -- errors of the scanner -----------------------------------------------------------------------


def _syntax(error: Any, text: str) -> LintProblem:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    if mark is None:
        return LintProblem("yaml", Place(), f"cannot be read: {error}")
    place = Place(mark.line + 1, mark.column + 1)
    said = str(getattr(error, "problem", "") or error)
    line = text.splitlines()[mark.line] if mark.line < len(text.splitlines()) else ""
    found, instead = _explained(said, line)
    return LintProblem("yaml", place, found, instead)


UNCLOSED = ("expected ',' or '}'", "expected ',' or ']'")
EXPLAINED = (
    (("mapping values are not allowed",), "a colon inside the value ends the text there", "quote the whole value"),
    (
        UNCLOSED,
        "a bracket inside {…} or […] ends the value there",
        "quote the value, or write it over several lines",
    ),
    (
        ("found character '|'", "found character '>'"),
        "a block of text (| or >) cannot stand inside {…} or […]",
        "quote the value, or write it over several lines",
    ),
    (
        ("found character '%'", "found character '@'", "found character '`'"),
        "a value cannot begin with this sign (SAID)",
        "quote the value",
    ),
    (("but found another document",), "a second document begins here (---)", "a file of its own"),
    (("undefined alias",), "SAID: `*` at the beginning of a value is an alias", "quote the value"),
)


def _explained(said: str, line: str) -> tuple[str, str]:
    """Explain an error of the scanner in terms of what people write, if it is a known one."""
    if "'\\t'" in said or "\t" in line[: len(line) - len(line.lstrip())]:
        return "a tab stands where only spaces may", "indent with spaces"
    if UNCLOSED[0] in said and ": " in line:
        return "a colon inside the value ends the text there", "quote the whole value"
    for signs, found, instead in EXPLAINED:
        if any(sign in said for sign in signs):
            return found.replace("SAID", said), instead
    return said, "check the indentation and the quotes of this line and the one above"


# -- nodes ---------------------------------------------------------------------------------------


class _Reader:
    """Makes plain data of nodes, and records the place of each part."""

    def __init__(self) -> None:
        self.places: dict[Path, Place] = {}
        self.problems: list[LintProblem] = []
        self._seen: set[int] = set()
        self._nodes = self._aliases = 0
        self._is_full = False

    def read(self, node: Any, path: Path, depth: int) -> Any:
        if not self._has_room(node, depth):
            return None
        self.places.setdefault(path, _place_of(node))
        kind = type(node).__name__
        if kind == "MappingNode":
            return self._mapping(node, path, depth)
        if kind == "SequenceNode":
            self._refuse_tag(node, "seq")
            return [self.read(item, (*path, number), depth + 1) for number, item in self._items(node)]
        return self._scalar(node)

    def _has_room(self, node: Any, depth: int) -> bool:
        self._nodes += 1
        self._aliases += id(node) in self._seen
        self._seen.add(id(node))
        if self._nodes > MOST_NODES or self._aliases > MOST_ALIASES or depth > DEEPEST:
            if not self._is_full:
                self._is_full = True
                found = "too much: the file is nested too deeply, or its aliases repeat too many values"
                self.problems.append(
                    LintProblem("yaml", _place_of(node), found, "write the values out, or split the file")
                )
            return False
        return True

    def _mapping(self, node: Any, path: Path, depth: int) -> Any:
        self._refuse_tag(node, "map")
        if (field := _unquoted(node)) is not None:
            found = f"{{{field}}} at the beginning of a value is read as a map"
            self.problems.append(LintProblem("unquoted-braces", _place_of(node), found, f'"{{{field}}}", in quotes'))
            return f"{{{field}}}"
        made: dict[str, Any] = {}
        for name, key, value in self._pairs(node):
            if self._is_full:
                break
            place = _place_of(key)
            if name in made:
                found = f"{name} stands twice in one map; the second would replace the first"
                self.problems.append(LintProblem("duplicate-key", place, found, "remove one, or rename it"))
                continue
            self.places[(*path, name)] = place
            made[name] = self.read(value, (*path, name), depth + 1)
            self.places[(*path, name, "")] = _place_of(value)  # the value's own place, beside its name's
        return made

    def _items(self, node: Any) -> Iterator[tuple[int, Any]]:
        for number, item in enumerate(node.value):
            if self._is_full:  # told once: the rest would only take time
                return
            yield number, item

    def _pairs(self, node: Any) -> Iterator[tuple[str, Any, Any]]:
        for key, value in node.value:
            if type(key).__name__ != "ScalarNode":
                self.problems.append(
                    LintProblem("yaml", _place_of(key), "a map's names are plain text", "write a name")
                )
            elif key.value == "<<" and key.style is None:
                found = "merge keys (<<) are not read"
                self.problems.append(LintProblem("yaml", _place_of(key), found, "write the fields out"))
            else:
                yield str(key.value), key, value

    def _scalar(self, node: Any) -> Any:
        text = str(node.value)
        if node.style is not None:  # quoted, or a block: always text
            return text
        self._refuse_tag(node, "str", "int", "float", "bool", "null", "timestamp", "value", "merge")
        if text in WORDS:
            return WORDS[text]
        if _INT.fullmatch(text):
            return int(text) if len(text) < 4_000 else text
        return Decimal(text) if _FLOAT.fullmatch(text) else text

    def _refuse_tag(self, node: Any, *names: str) -> None:
        if node.tag not in {f"tag:yaml.org,2002:{name}" for name in names}:
            tag = node.tag.replace("tag:yaml.org,2002:", "!!")
            self.problems.append(
                LintProblem("yaml", _place_of(node), f"the tag {tag} is not read", "write the plain value")
            )


def _place_of(node: Any) -> Place:
    return Place(node.start_mark.line + 1, node.start_mark.column + 1)


def _unquoted(node: Any) -> str | None:
    """Return what was meant as a field. Without quotes, YAML reads `{order.id}` as a map with the one name `order.id`
    and no value, and `{{ x }}` as a map in a map.
    """
    if not node.flow_style or len(node.value) != 1:
        return None
    key, value = node.value[0]
    if type(key).__name__ == "MappingNode":
        return _unquoted(key)
    empty = type(value).__name__ == "ScalarNode" and value.value == "" and value.style is None
    text = str(getattr(key, "value", ""))
    return text if empty and type(key).__name__ == "ScalarNode" and _FIELD.fullmatch(text) else None
