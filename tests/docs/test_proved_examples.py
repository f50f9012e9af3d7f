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


@pytest.mark.parametrize(
    ("command", "said"), TYPED, ids=[command.split("prove ")[1].split()[0] for command, _ in TYPED]
)
def test_an_example_is_proved_as_the_page_says(folder: Path, command: str, said: str) -> None:
    program = str(Path(sys.executable).with_name("twiceproof"))
    environment = {**os.environ, "MAIL_PASSWORD": "any"}
    words = [program, *shlex.split(command)[1:]]
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=170)
    assert says(said, done.stdout), done.stdout + done.stderr
    assert done.returncode == ("naive" in command)


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
