"""Each example runs, and prints what its last lines say."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

from tests.docs.blocks import ROOT

pytestmark = pytest.mark.slow

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def promised(text: str) -> str:
    """The comment at the end of an example that starts with `# Prints:`."""
    _, _, tail = text.partition("\n# Prints:\n")
    return "".join(line.removeprefix("#").removeprefix(" ") + "\n" for line in tail.splitlines())


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_prints_what_it_promises(example, tmp_path):
    copied = shutil.copy(example, tmp_path)  # its ledger is made beside it
    done = subprocess.run(
        [sys.executable, "-W", "error", copied], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    new = [line for line in done.stderr.splitlines() if line.startswith(f"this is a new ledger: {tmp_path}/")]
    assert done.stderr.splitlines() == new
    assert done.stdout == promised(example.read_text("utf-8"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_says_in_one_sentence_what_it_shows_and_promises_what_it_prints(example):
    text = example.read_text("utf-8")
    first = text.splitlines()[0]
    assert first.startswith('"""') and first.endswith('."""')
    assert promised(text)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_stands_on_the_page_about_examples_as_it_is(example):
    page = (ROOT / "docs/examples.md").read_text("utf-8")
    assert f"`examples/{example.name}`:" in page
    assert f"```text\n{promised(example.read_text('utf-8'))}```" in page
