"""Log lines for people: what comes from outside writes no lines of its own."""

import logging

from twiceproof.flows.workers.log import TextLines


def test_a_message_has_one_line_and_no_escapes():
    said = logging.LogRecord("x", logging.ERROR, "", 0, "poison: %s", ("a\n2026 ERROR forged\r\x1b[2J\u202eb",), None)
    line = TextLines("%(levelname)s %(message)s").format(said)
    assert line == "ERROR poison: a\\x0a2026 ERROR forged\\x0d\\x1b[2J\\x202eb"
