"""The page about threats names tests; a test that is gone leaves a promise that nothing shows."""

import re

import pytest

from tests.docs.blocks import ROOT

PAGE = ROOT / "docs/why/threats.md"
ROWS = [line for line in PAGE.read_text("utf-8").splitlines() if line.startswith("| ")][1:]


def known() -> set[str]:
    files = [*ROOT.glob("tests/**/*.py"), *ROOT.glob("src/twiceproof/prove/**/*.py")]
    found = re.compile(r"^\s*(?:async )?def (test_\w+)", re.M)
    return {name for file in files for name in found.findall(file.read_text("utf-8"))}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.split("|")[1].strip())
def test_every_threat_names_tests_that_are_there(row):
    names = re.findall(r"`(test_\w+)`", row)
    assert names
    assert set(names) - known() == set()
