"""The reference is what the code says: a page that differs is red, and nothing that exists is left out."""

from __future__ import annotations

import re

import pytest

from tests.docs.blocks import ROOT
from tools.reference.block import names, renewed
from tools.reference.commands import commands
from tools.reference.makers import DOCS, MAKERS, pages
from twiceproof import errors
from twiceproof.server.routes import ROUTES
from twiceproof.settings import ENVIRONMENT
from twiceproof.stores.open import OPENERS

RENEW = "the code says something else now; run: make docs (or python -m tools.reference)"


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.stem)
def test_a_generated_part_of_a_page_is_what_the_code_says(page):
    assert page.read_text("utf-8") == renewed(page, MAKERS), RENEW


def test_a_page_that_says_something_else_is_told_from_one_that_is_true(tmp_path):
    page = tmp_path / "settings.md"
    page.write_text("# Mine\n\n<!-- generated: settings -->\nnonsense\n<!-- end -->\n\nMine too.\n")
    true = renewed(page, MAKERS)
    assert "nonsense" not in true
    assert "TWICEPROOF_STORE" in true
    assert true.startswith("# Mine\n") and true.endswith("\n\nMine too.\n")
    page.write_text(true)
    assert renewed(page, MAKERS) == true


def test_every_command_has_its_part_of_the_page():
    told = [about for name, about in names(DOCS / "reference/cli.md") if name == "command"]
    assert sorted(told) == sorted(name for name, _ in commands())


def test_every_route_of_the_api_is_on_the_page_about_http():
    told = {about for name, about in names(DOCS / "reference/http.md") if name == "routes"}
    assert told == {route.tag for route in ROUTES if route.path.startswith("/v1/")}


def test_what_every_doctor_looks_for_is_on_the_page_about_stores():
    page = (ROOT / "docs/reference/stores.md").read_text("utf-8")
    doctors = {path.parent.name for path in (ROOT / "src/twiceproof/stores").glob("*/doctor.py")}
    assert len(doctors) == 9
    assert {name for name in doctors if f"<!-- generated: store-checks {name} -->" not in page} == set()


def test_every_scheme_of_a_store_and_every_variable_is_told():
    stores, settings = ((DOCS / f"reference/{name}.md").read_text("utf-8") for name in ("stores", "settings"))
    assert [scheme for scheme in OPENERS if f"`{scheme}://" not in stores] == []
    assert [name for name in ENVIRONMENT.values() if f"`{name}`" not in settings] == []


def test_every_variable_that_the_code_names_is_a_setting_or_is_told_to_a_remote_job():
    named = {
        found
        for path in (ROOT / "src").rglob("*.py")
        for found in re.findall(r"TWICEPROOF_[A-Z_]+", path.read_text("utf-8"))
    }
    secret = "TWICEPROOF_CLIENT_SECRET"  # of the application that signs in at a store's service
    assert named == {*ENVIRONMENT.values(), "TWICEPROOF_CALLBACK_URL", "TWICEPROOF_EFFECT_KEY", secret}
    assert secret in (DOCS / "reference/stores.md").read_text("utf-8")


@pytest.mark.parametrize("name", errors.__all__)
def test_every_error_says_what_to_do(name):
    rows = (DOCS / "reference/errors.md").read_text("utf-8").splitlines()
    row = next(line for line in rows if line.startswith(f"| `{name}` |"))
    _, when, _, move, _ = (cell.strip() for cell in row.strip("|").split("|"))
    assert when and move


# Nouns with which the help of a command might begin, instead of what the command does.
NO_VERBS = {"A", "An", "The", "All", "Each", "This", "What", "How", "Who", "Commands"}


def test_the_help_of_every_command_begins_with_one_imperative_sentence():
    for name, found in commands():
        first = " ".join((found.help or "").split("\n\n")[0].split())
        assert first.endswith(".") and ". " not in first, (name, first)
        verb = first.split()[0].rstrip(",")
        assert verb.replace("-", "").isalpha() and verb[0].isupper() and verb not in NO_VERBS, (name, first)
        assert verb.endswith("ss") or not verb.endswith("s"), (name, first)
