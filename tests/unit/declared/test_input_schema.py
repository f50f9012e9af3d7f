"""Inputs that a JSON Schema declares are written into the file before anything reads it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from twiceproof import App, Misuse, NotDone, load_flows
from twiceproof.declared.connections import Connections
from twiceproof.declared.flow_files import problems_of
from twiceproof.declared.input_schema import inputs_of_schema, text_of_file
from twiceproof.declared.reading import read_flow
from twiceproof.declared.releases import content_hash

ORDER: dict[str, Any] = {
    "type": "object",
    "required": ["order"],
    "properties": {"order": {"$ref": "#/$defs/order"}, "note": {"type": "string"}},
    "$defs": {
        "order": {
            "type": "object",
            "required": ["id", "total", "paid"],
            "properties": {
                "id": {"type": "integer"},
                "total": {"type": "number"},
                "paid": {"type": "boolean"},
                "vat": {"type": ["string", "null"]},
                "lines": {"type": "array"},
                "anything": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
            },
        }
    },
}
WRITTEN = {
    "order": {
        "id": "integer",
        "total": "number",
        "paid": "yes_no",
        "vat": "optional text",
        "lines": "optional list",
        "anything": "optional any",
    },
    "note": "optional text",
}
FLOW = "flow: bill\ninput: {schema: order.schema.json}\nkey: k:{order.id}\nsteps:\n  - done: =order.totl\n"


def written(folder: Path, text: str = FLOW, schema: Any = ORDER) -> Path:
    (folder / "order.schema.json").write_text(json.dumps(schema))
    file = folder / "bill.flow.yaml"
    file.write_text(text)
    return file


def test_the_properties_of_a_schema_are_the_inputs():
    assert inputs_of_schema(ORDER) == WRITTEN


@pytest.mark.parametrize("own", ["{schema: order.schema.json}", "\n  # of the shop\n  schema: order.schema.json  # v2"])
def test_lines_keep_their_numbers_and_the_hash_is_that_of_inputs_written_out(tmp_path, own):
    file = written(tmp_path, FLOW.replace(" {schema: order.schema.json}", own if own[0] == "\n" else f" {own}"))
    (problem, *_) = [one for one in problems_of(file, Connections()) if one.rule == "unknown-name"]
    assert problem.place.line == file.read_text().splitlines().index("  - done: =order.totl") + 1
    plain = read_flow(FLOW.replace("{schema: order.schema.json}", json.dumps(WRITTEN))).file
    whole = read_flow(text_of_file(file)).file
    assert plain is not None and whole is not None and content_hash(whole) == content_hash(plain)


def test_an_event_that_does_not_fit_the_schema_fails_with_its_path(tmp_path):
    written(tmp_path, FLOW.replace("totl", "total"))
    with App("memory://") as app:
        bill = load_flows(app, tmp_path)["bill"]
        assert bill({"id": 1, "total": 2.5, "paid": True}) == 2.5
        with pytest.raises(NotDone, match=r"order\.paid is missing"):
            bill({"id": 2, "total": 2.5})


def test_an_input_that_is_called_schema_is_one(tmp_path):
    text = FLOW.replace("order.schema.json", "text").replace("order.id", "schema")
    assert text_of_file(written(tmp_path, text)) == text


@pytest.mark.parametrize(
    ("schema", "said"),
    [(None, "bill.flow.yaml:2: the schema order.schema.json cannot be read"), ({"type": "string"}, "properties")],
)
def test_a_schema_that_cannot_be_used_is_told(tmp_path, schema, said):
    file = written(tmp_path, schema=schema or {})
    if schema is None:
        (tmp_path / "order.schema.json").unlink()
    with pytest.raises(Misuse, match=said):
        text_of_file(file)
