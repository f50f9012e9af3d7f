"""JSON schemas of the types that routes take and answer with, as msgspec writes and reads them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

__all__ = ["Schemas"]

PLACE = "#/components/schemas/{name}"


class Schemas:
    """`components` are shared; what is no class of ours is written out where it is used."""

    def __init__(self, types: Sequence[Any]) -> None:
        known: dict[str, Any] = {repr(kind): kind for kind in types}
        written, components = msgspec.json.schema_components(known.values(), ref_template=PLACE)
        # A default of () is no JSON before it is written.
        self.components: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(components))
        self._written = dict(zip(known, written, strict=True))

    def of(self, kind: Any) -> dict[str, Any]:
        return self._written[repr(kind)]

    def query_parameters(self, kind: Any) -> list[dict[str, Any]]:
        """Each field of the type is a parameter."""
        if kind is None:
            return []
        whole = self.components[self.of(kind)["$ref"].rpartition("/")[2]]
        required = whole.get("required", [])
        return [
            {"name": name, "in": "query", "required": name in required, "schema": schema}
            for name, schema in whole["properties"].items()
        ]
