"""The examples made of effects are proved by the commands of the page, and their naive versions are not."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT, blocks, commands, says

pytestmark = pytest.mark.slow

PAGE = ROOT / "docs/how-to/prove-a-flow.md"
EFFECTS = ROOT / "docs/how-to/effects.md"
Typed = tuple[str, str]


def flow_of(typed: Typed) -> str:
    """MODULE:FLOW, which the command proves."""
    return typed[0].split("prove ")[1].split()[0]


TYPED: list[Typed] = [
    (command, said)
    for block in blocks(PAGE)
    if block.language == "console"
    for command, said in commands(block)
    if any(name in command for name in ("order_to_invoice:", "welcome_email:", "naive_sync:"))
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(ROOT / "examples", tmp_path / "examples", ignore=shutil.ignore_patterns("*.db*")))


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    program = str(Path(sys.executable).with_name("twiceproof"))
    environment = {**os.environ, **dict.fromkeys(("MAIL_PASSWORD", "BOOKS_TOKEN", "SMTP_PASSWORD"), "any")}
    return subprocess.run([program, *words], cwd=folder, env=environment, capture_output=True, text=True, timeout=600)


@pytest.mark.parametrize("typed", TYPED, ids=flow_of)
def test_an_example_is_proved_as_the_page_says(folder: Path, typed: Typed) -> None:
    command, said = typed
    done = run(folder, *shlex.split(command)[1:])
    assert says(said, done.stdout), done.stdout + done.stderr
    assert done.returncode == ("naive" in command)


def test_the_flow_of_the_page_about_effects_is_proved_as_it_says(folder: Path) -> None:
    page = EFFECTS.read_text()
    (folder / "shop.py").write_text(next(one.text for one in blocks(EFFECTS) if one.language == "py"))
    (folder / "order.json").write_text(page.partition("`order.json`\n(`")[2].partition("`)")[0])
    ((_, _), (command, said)) = [pair for one in blocks(EFFECTS) if one.language == "console" for pair in commands(one)]
    done = run(folder, *shlex.split(command)[1:])
    assert says(said, done.stdout), done.stdout + done.stderr
    assert done.returncode == 0


@pytest.mark.parametrize("module", ["order_to_invoice", "welcome_email", "claim_first_order_flow", "how_to"])
def test_the_design_of_an_example_made_of_effects_has_no_findings(folder: Path, module: str) -> None:
    (folder / "how_to.py").write_text(next(one.text for one in blocks(EFFECTS) if one.language == "py"))
    done = run(folder, "check", f"{module}:app")
    assert (done.returncode, done.stdout) == (0, "Checked 1 flow: no findings.\n")


def test_both_examples_and_both_naive_versions_are_on_the_page() -> None:
    assert [*map(flow_of, TYPED)] == [
        "order_to_invoice:sync_order",
        "welcome_email:welcome",
        "naive_sync:sync_order",
        "naive_sync:welcome",
    ]


def test_the_answers_on_the_page_are_those_of_the_example() -> None:
    (shown,) = [block.text for block in blocks(PAGE) if block.language == "json"]
    assert shown == (ROOT / "examples/books.json").read_text()
