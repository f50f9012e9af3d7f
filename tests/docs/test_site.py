"""The site builds without a warning, leads nowhere that is not there, and needs no network."""

from __future__ import annotations

import re

import pytest
import yaml

from tests.docs.blocks import ROOT
from tests.docs.built import broken, outside_loads
from tools.website.build import CONFIG, build
from tools.website.nav import named, without

DOCS = ROOT / "docs"
NAV = yaml.safe_load(CONFIG.read_text("utf-8"))["nav"]


@pytest.mark.slow
def test_the_site_builds_without_dead_links_and_loads_nothing_from_another_host(tmp_path):
    site = tmp_path.resolve() / "site"
    assert "No issues found" in build(site)
    names = [str(page.relative_to(DOCS).with_suffix("")) for page in DOCS.rglob("*.md")]
    built = {str(path.parent.relative_to(site)) for path in site.rglob("*.html")}
    assert {re.sub(r"(^|/)(index|README)$", "", name) or "." for name in names} <= built
    assert broken(site) == []
    assert outside_loads(site) == []
    texts = {path: path.read_text("utf-8") for path in site.rglob("*.html")}
    # The theme's script would fetch a drawing program for what has this class.
    assert [path for path, text in texts.items() if 'class="mermaid"' in text or "language-mermaid" in text] == []
    assert [path for path, text in texts.items() if "|---" in text] == []  # a table that was not read as one
    styles = [path.read_text("utf-8") for path in site.rglob("*.css")]
    assert not any(re.search(r"(?:@import|url\()\s*[\"']?(?:https?:)?//", style) for style in styles)


def test_every_page_of_the_documents_is_in_the_navigation_once():
    there = [str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")]
    listed = [page for page in named(NAV) if (DOCS / page).exists()]
    assert sorted(listed) == sorted(there)


def test_what_is_not_there_is_left_out_of_the_navigation_with_its_heading():
    nav = [{"Home": "index.md"}, {"Later": ["a.md", {"B": "b.md"}]}, {"Some": ["index.md", {"B": "b.md"}]}]
    assert without(nav, lambda page: page == "index.md") == [{"Home": "index.md"}, {"Some": ["index.md"]}]


BROKEN = {
    "a page that is not there": '<a href="nowhere/">x</a>',
    "an anchor that is not there": '<a href="#nowhere">x</a>',
    "a picture that is not there": '<img src="nowhere.svg">',
}


@pytest.mark.parametrize("what", BROKEN)
def test_the_checker_finds_what_leads_nowhere(what, tmp_path):
    (tmp_path / "index.html").write_text(f'<h1 id="top">x</h1><a href="#top">y</a><a href="">z</a>{BROKEN[what]}')
    assert len(broken(tmp_path.resolve())) == 1


def test_the_checker_finds_what_another_host_is_asked_for(tmp_path):
    (tmp_path / "index.html").write_text(
        '<script src="//cdn.example/x.js"></script><a href="https://example.org">y</a>'
    )
    assert len(outside_loads(tmp_path)) == 1
    assert broken(tmp_path.resolve()) == []


def test_decisions_are_numbered_without_holes_and_all_listed():
    pages = sorted(page.name for page in (DOCS / "decisions").glob("0*.md"))
    assert [page[:4] for page in pages] == [f"{number:04}" for number in range(1, len(pages) + 1)]
    listed = re.findall(r"^\| \[\d{4}\]\((.+?)\)", (DOCS / "decisions" / "README.md").read_text("utf-8"), re.MULTILINE)
    assert listed == pages
