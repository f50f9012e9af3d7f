"""Whatever the pages and the help texts say to type can be typed: the command exists, and so do its options."""

from __future__ import annotations

import json
import re

import pytest

from tests.docs.blocks import FENCE, ROOT, blocks, documents
from tests.docs.typed import typed, wrong
from tools.reference.commands import commands


def name_of(document):
    return str(document.relative_to(ROOT))


@pytest.mark.parametrize("document", documents(), ids=name_of)
def test_every_command_of_a_document_could_be_run_as_it_stands(document):
    shells = [block for block in blocks(document) if block.language in ("console", "sh", "bash")]
    lines = [line for block in shells for line in block.text.replace("\\\n", " ").splitlines()]
    shown = [words for line in lines if "twiceproof " in line for words in typed(line)]
    assert [(words, why) for words in shown if (why := wrong(words))] == []


@pytest.mark.parametrize("document", documents(), ids=name_of)
def test_every_command_that_a_sentence_names_exists(document):
    prose = FENCE.sub("", document.read_text("utf-8"))
    shown = [words for code in re.findall(r"`(twiceproof [^`]+)`", prose) for words in typed(code)]
    assert [(words, why) for words in shown if (why := wrong(words, whole=False))] == []


@pytest.mark.parametrize(("name", "command"), list(commands()), ids=[name for name, _ in commands()])
def test_every_example_of_a_help_text_could_be_run_as_it_stands(name, command):
    lines = [line.strip() for line in (command.epilog or "").splitlines()]
    shown = [words for line in lines if "twiceproof " in line for words in typed(line.split("  ")[0])]
    assert [(words, why) for words in shown if (why := wrong(words))] == []
    assert shown or name == "version"


@pytest.mark.parametrize("document", documents(), ids=name_of)
def test_every_json_of_a_document_is_json(document):
    for block in blocks(document):
        if block.language == "json":
            json.loads(block.text)


WRONG = {
    "twiceproof claims lost": "there is no command 'lost'",
    "twiceproof claims list --sate review": "No such option",
    "twiceproof claims list --state lost": "is not one of",
    "twiceproof claims show ship": "Missing",
    "twiceproof doctor here": "too many words",
    "twiceproof demo --orders 0": "is not in the range",
    "X=1 twiceproof claims | jq .": "a command is missing",
}


@pytest.mark.parametrize("line", WRONG)
def test_a_line_that_could_not_be_run_is_found(line):
    (words,) = typed(line)
    assert WRONG[line] in wrong(words)


@pytest.mark.parametrize(
    "line",
    [
        "$ twiceproof --store sqlite:///a.db claims list --state review --json | jq .claims",
        'export TWICEPROOF_KEYS="$(twiceproof encryption new-key)"  # made here',
        "TWICEPROOF_STORE=memory:// twiceproof claims show ship -- -17 &",
    ],
)
def test_a_line_that_could_be_run_is_left_in_peace(line):
    (words,) = typed(line)
    assert wrong(words) == ""
