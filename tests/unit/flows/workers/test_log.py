"""Log lines, for people and for programs: what comes from outside writes no lines of its own."""

import json
import logging

import pytest

from twiceproof.flows.workers.log import JsonLines, TextLines


def test_a_message_has_one_line_and_no_escapes():
    said = logging.LogRecord("x", logging.ERROR, "", 0, "poison: %s", ("a\n2026 ERROR forged\r\x1b[2J\u202eb",), None)
    line = TextLines("%(levelname)s %(message)s").format(said)
    assert line == "ERROR poison: a\\x0a2026 ERROR forged\\x0d\\x1b[2J\\x202eb"


@pytest.mark.parametrize(
    "text", ["a\n2026 ERROR forged", "\x1b[2J", "\x9b2J", "\u202eb", "\u2028b", "half \ud800 of one", "Zoë"]
)
def test_a_line_in_json_is_plain_and_says_the_same(text):
    try:
        raise ValueError(text)
    except ValueError as error:
        about = (type(error), error, error.__traceback__)
    said = logging.LogRecord("x", logging.ERROR, "", 0, "poison: %s", (text,), about)
    said.key = text
    line = JsonLines().format(said)
    assert line.isascii() and line.isprintable()
    found = json.loads(line)
    assert (found["message"], found["key"]) == (f"poison: {text}", text) and found["error"].endswith(text)
