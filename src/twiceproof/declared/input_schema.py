"""`input: {schema: order.schema.json}`: a flow's inputs from a JSON Schema beside its file.

The inputs are written into the text in the place of the schema's name, before anything else reads it. So a draft and a
release are whole without the schema's file, and a changed schema is a changed content.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import Misuse
from .nodes import read_utf8

__all__ = ["inputs_of_schema", "text_of_file"]


SCHEMA = "schema"
SUFFIX = ".json"
WORDS = {"string": "text", "number": "number", "integer": "integer", "boolean": "yes_no", "array": "list"}
DEEPEST = 20


def text_of_file(file: Path) -> str:
    """Return the text of a flow file, with the inputs of a JSON Schema written out. Lines keep their numbers.

    Raises Misuse if the schema cannot be read.
    """
    text = read_utf8(file)
    found = _schema_in(text)
    if found is None:
        return text
    name, start, end, line = found
    try:
        inputs = inputs_of_schema(json.loads((file.parent / name).read_text("utf-8")))
    except (OSError, ValueError) as error:
        raise Misuse(
            f"{file}:{line}: the schema {name} cannot be read ({error}); it is looked for beside the file."
        ) from None
    lines = "\n" * text.count("\n", start, end)
    return f"{text[:start]}{json.dumps(inputs)}{lines}{text[end:]}"


def _schema_in(text: str) -> tuple[str, int, int, int] | None:
    """Return the schema's name, where the inputs begin and end, and the line. None: the inputs stand in the file."""
    if f"{SCHEMA}:" not in text:
        return None
    try:
        import yaml
    except ImportError:
        return None  # told by `parse`, with the extra to install
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except (yaml.YAMLError, RecursionError):
        return None  # it is told with its place by whoever reads the text
    pairs = root.value if isinstance(root, yaml.MappingNode) else []
    for key, value in pairs:
        if key.value == "input" and isinstance(value, yaml.MappingNode) and len(value.value) == 1:
            ((name, file),) = value.value
            if name.value == SCHEMA and isinstance(file.value, str) and file.value.endswith(SUFFIX):
                return file.value, value.start_mark.index, value.end_mark.index, file.start_mark.line + 1
    return None


def inputs_of_schema(schema: Any) -> dict[str, Any]:
    """Return a flow's inputs: the properties of a schema's object. Raises Misuse."""
    whole = _resolved(schema, schema)
    if not isinstance(whole.get("properties"), Mapping):
        raise Misuse("The schema of an input is an object with properties: they are the inputs, by name.")
    return _fields(whole, schema, 0)


def _fields(schema: Mapping[str, Any], root: Any, depth: int) -> dict[str, Any]:
    required = schema.get("required", [])
    return {
        name: _declared(inner, root, depth + 1, optional=name not in required)
        for name, inner in schema["properties"].items()
    }


def _declared(inner: Any, root: Any, depth: int, *, optional: bool) -> Any:
    schema = _resolved(inner, root)
    kind = schema.get("type")
    if isinstance(kind, list):  # ["string", "null"]
        optional = optional or "null" in kind
        kind = next((one for one in kind if one != "null"), None) if len(set(kind) - {"null"}) == 1 else None
    if kind == "object" and schema.get("properties") and not optional and depth < DEEPEST:
        return _fields(schema, root, depth)
    word = "map" if kind == "object" else WORDS.get(str(kind), "any")
    return f"optional {word}" if optional else word


def _resolved(schema: Any, root: Any) -> Mapping[str, Any]:
    """Follow references within the document."""
    for _ in range(DEEPEST):
        reference = schema.get("$ref") if isinstance(schema, Mapping) else None
        if not isinstance(reference, str) or not reference.startswith("#/"):
            return schema if isinstance(schema, Mapping) else {}
        schema = root
        for part in reference.removeprefix("#/").split("/"):
            schema = schema.get(part) if isinstance(schema, Mapping) else None
    return {}
