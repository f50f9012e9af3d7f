"""The page about flows in files: its files are loaded, its problems are those of lint, and its flow is proved."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT, blocks

PAGE = ROOT / "docs/how-to/write-a-flow-in-a-file.md"
WRONG = """\
flow: wrong
input: {order: {id: integer, total: number}}
key: shop:order:{order.id}
uses: [books]
steps:
  - step: invoice
    http: POST books /invoices
    json: {sum: =order.totl}
tests: [{name: one, input: {order: {id: 1, total: 2}}}]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    flow, connections = [block.text for block in blocks(PAGE) if block.language == "yaml"]
    (code,) = [block.text for block in blocks(PAGE) if block.language == "py"]
    (tmp_path / "flows").mkdir()
    (tmp_path / "flows/sync_order.flow.yaml").write_text(flow)
    (tmp_path / "flows/connections.yaml").write_text(connections)
    (tmp_path / "shop.py").write_text(code)
    (tmp_path / "wrong.flow.yaml").write_text(WRONG)
    return tmp_path


def run(folder: Path, typed: str) -> str:
    program = str(Path(sys.executable).with_name("twiceproof"))
    secrets = {"SHOP_SECRET": "whsec_" + "a" * 32, "ACCOUNTING_TOKEN": "t", "SMTP_PASSWORD": "p"}
    words = [program, *typed.removeprefix("twiceproof ").split()]
    return subprocess.run(
        words, cwd=folder, env={**os.environ, **secrets}, capture_output=True, text=True, timeout=600
    ).stdout


def test_lint_says_what_the_page_says(folder: Path) -> None:
    (told,) = [block.text for block in blocks(PAGE) if block.text.startswith("$ twiceproof flows lint")]
    typed, _, said = told.partition("\n")
    assert run(folder, typed.removeprefix("$ ")).strip() == said.strip()


def test_the_flow_of_the_page_has_no_problems_and_no_findings(folder: Path) -> None:
    assert run(folder, "flows lint flows") == "Checked 1 file: no problems.\n"
    assert run(folder, "check shop:app").strip().endswith("Checked 1 flow: no findings.")


@pytest.mark.slow
def test_the_tests_of_the_page_pass_as_it_says(folder: Path) -> None:
    (told,) = [block.text for block in blocks(PAGE) if block.text.startswith("$ twiceproof flows test")]
    typed, _, said = told.partition("\n")
    shown = run(folder, typed.removeprefix("$ ")).splitlines()
    first, *rest = said.strip().splitlines()
    assert shown[0].startswith(first.partition("…")[0]) and shown[1:] == rest
