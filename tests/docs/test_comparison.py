"""A comparison that does not say where it is from, and when to take the other, is an advertisement."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT, links

FOLDER = ROOT / "docs/comparison"
INDEX = FOLDER / "index.md"
PAGES = sorted(set(FOLDER.glob("*.md")) - {INDEX})
QUESTIONS = ("a second start", "another payload", "outcome is unknown", "fencing", "a state *unknown*")
QUESTIONS += ("review", "found later", "proof", "needs", "licence")
REGISTRIES = ("pypi", "npmjs", "unpkg", "crates.io", "hex.pm", "rubygems")
DATE = re.compile(r"\b20\d\d-(0[1-9]|1[0-2])\b")


def section(page: Path, title: str) -> str:
    """What stands under a heading, up to the next."""
    found = re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", page.read_text("utf-8"), re.M | re.S)
    return found[1] if found else ""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_comparison_names_at_least_three_sources_and_when_they_were_looked_up(page):
    sources = section(page, "Sources")
    assert len(re.findall(r"^- .*\]\(https?://", sources, re.M)) >= 3
    assert "Looked up" in sources
    assert DATE.search(sources.splitlines()[1])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_comparison_says_when_to_take_the_other(page):
    assert len(re.findall(r"^- ", section(page, "When to take it instead"), re.M)) >= 3


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_comparison_answers_every_question(page):
    rows = [line.split("|")[1] for line in section(page, "The same questions").splitlines() if line.startswith("| ")]
    assert [asked for asked in QUESTIONS if not any(asked in row for row in rows)] == []


@pytest.mark.parametrize("page", [*PAGES, INDEX], ids=lambda page: page.stem)
def test_a_comparison_points_at_documentation_and_not_at_registries(page):
    assert [name for name in REGISTRIES if name in page.read_text("utf-8")] == []


def test_the_overview_leads_to_every_comparison_and_its_table_is_whole():
    assert {page.name for page in PAGES} <= set(links(INDEX))
    rows = [line for line in section(INDEX, "In one table").splitlines() if line.startswith("|")]
    assert {row.count("|") for row in rows} == {len(PAGES) + 3}
    assert all(cell.strip() for row in rows[1:] for cell in row.strip("|").split("|"))
