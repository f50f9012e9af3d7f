"""The diagrams are drawn from what they show: every state that there is, and no other."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from tests.docs.blocks import ROOT, blocks, documents
from tools.reference.diagrams import DIAGRAMS
from tools.reference.drawing import Arrow, Diagram, draw
from twiceproof.claims import claim
from twiceproof.flows.engine import ledger as entry
from twiceproof.flows.history.queries import EVERY_STATE
from twiceproof.outbox import message
from twiceproof.reconcile.findings import EVERY_STATE as FINDING_STATES

PICTURES = ROOT / "docs/pictures"
STATES = {
    "claim": {claim.HELD, claim.DONE, claim.FAILED, claim.REVIEW},
    "run": set(EVERY_STATE),
    "finding": set(FINDING_STATES),
    "step": {entry.STARTED, entry.STEP_DONE, entry.STEP_FAILED, entry.RETRY, entry.UNKNOWN},
    "message": set(message.STATES),
}


@pytest.mark.parametrize("name", DIAGRAMS)
def test_a_picture_is_what_is_drawn_and_can_be_read(name):
    text = (PICTURES / f"{name}.svg").read_text("utf-8")
    assert text == draw(DIAGRAMS[name]), "run: make docs (or python -m tools.reference)"
    ElementTree.fromstring(text)


@pytest.mark.parametrize("name", DIAGRAMS)
def test_a_diagram_shows_every_state_and_each_can_be_reached(name):
    diagram = DIAGRAMS[name]
    assert diagram.states == STATES[name]
    assert {arrow.target for arrow in diagram.arrows} >= diagram.states
    assert {end for arrow in diagram.arrows for end in (arrow.source, arrow.target)} == set(diagram.places)


def test_every_picture_stands_on_the_page_about_states():
    page = (ROOT / "docs/states.md").read_text("utf-8")
    assert [path.name for path in PICTURES.glob("*.svg") if f"(pictures/{path.name})" not in page] == []


def test_every_picture_of_the_dashboard_stands_on_the_page_that_it_is_for():
    pages = {
        name: (ROOT / f"docs/how-to/{name}.md").read_text("utf-8") for name in ("a-day-on-duty", "first-flow-in-a-file")
    }
    found = [path.name for path in PICTURES.iterdir() if path.suffix != ".svg"]
    of_flows = {"dashboard-flow.png", "dashboard-release.png"}
    assert of_flows < {*found}
    for name in found:
        assert f"(../pictures/{name})" in pages["first-flow-in-a-file" if name in of_flows else "a-day-on-duty"], name


def test_no_page_needs_a_drawing_program():
    assert [doc for doc in documents() for block in blocks(doc) if block.language == "mermaid"] == []


def test_an_arrow_ends_at_the_edge_of_its_box():
    drawn = draw(Diagram("two", (300, 100), {"a": (60, 50), "b": (240, 50)}, (Arrow("a", "b", "go"),)))
    assert 'd="M112.0 50.0L188.0 50.0"' in drawn
