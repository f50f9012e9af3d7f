"""What is printed is fit for a terminal, and hides what must be hidden."""

from __future__ import annotations

import json
import shlex
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twiceproof.cli.output import clean, escaped, moment, span
from twiceproof.safe_text import INVISIBLE, has_password, quoted, redacted, shown_url

EVIL = "\x1b]0;title\x07\x1b[2J\x9b31m\u202egnp.exe\u2066\u200b\x00\r\x08"


def test_nothing_unseen_is_left_and_nothing_is_hidden():
    assert clean("order\x1b[31m:\u202e17") == "order\\x1b[31m:\\u202e17"
    assert clean("Zoë 注文 🚚") == "Zoë 注文 🚚"


@given(st.text(st.characters(exclude_categories=())))
def test_clean_text_has_no_control_characters(text):
    assert not INVISIBLE.search(clean(text))
    assert not any(ord(letter) < 32 or 127 <= ord(letter) < 160 for letter in clean(text))


@given(st.text())
def test_an_escaped_document_is_plain_and_means_the_same(text):
    document = escaped(json.dumps({text: [text]}, ensure_ascii=False))
    assert document.isascii()
    assert "\x7f" not in document
    assert json.loads(document) == {text: [text]}


def controls(text):
    return sorted({letter for letter in text if INVISIBLE.match(letter) and letter != "\n"})


def test_a_ledger_cannot_write_to_the_terminal(run, ledger):
    """Also from a record that twiceproof itself would have refused: the key and the owner are taken as they come."""
    ledger.hold("", key=EVIL.replace("\x00", ""), owner=EVIL.replace("\x00", ""))
    ledger.call("timeout")
    result = json.dumps({"note": EVIL, "\u202ekey": 1}, ensure_ascii=False)
    run(
        "claims",
        "settle",
        "ship",
        "order:timeout",
        "--happened",
        "--result",
        result,
        "--note",
        "\x1b[1m",
        "--by",
        "\x9b",
    )
    for words in (["claims", "list", "--state", "all"], ["claims", "show", "ship", "order:timeout"]):
        for form in ([], ["--json"]):
            assert controls(run(*words, *form).stdout) == []


def test_an_error_cannot_write_to_the_terminal(run):
    for form in ([], ["--json"]):
        assert controls(run("claims", "show", "ship", f"k{EVIL}", *form, code=2).output) == []


def test_json_gives_back_the_very_key(run_json, ledger):
    ledger.hold("", key="order:\u202e17")
    assert run_json("claims", "list")["claims"][0]["key"] == "order:\u202e17"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("sqlite:///twiceproof.db", "sqlite:///twiceproof.db"),
        ("sqlite:////var/lib/a.db?durability=process", "sqlite:////var/lib/a.db?durability=process"),
        ("postgresql://ann:pw@db:5432/app", "postgresql://ann:***@db:5432/app"),
        ("postgresql://ann@db/app", "postgresql://ann@db/app"),
        ("postgresql://ann:p@ss:w@db/app", "postgresql://ann:***@db/app"),
        ("postgresql://db/app?user=a&password=pw", "postgresql://db/app?user=a&password=***"),
        ("redis://:pw@cache/0", "redis://:***@cache/0"),
        ("postgresql://[bad", "postgresql://***"),
        ("host=db password=pw", "host=db password=***"),
    ],
)
def test_a_url_is_shown_without_its_password(url, shown):
    assert shown_url(url) == shown
    assert has_password(url) == ("pw" in url or "p@ss" in url)


def test_a_message_loses_the_password_in_every_form():
    url = "postgresql://ann:s3%40cret@db/app"
    for message in ("for s3@cret", "for s3%40cret", f"to {url}", "dsn: password='s3 other' host=db"):
        assert "s3" not in redacted(message, url)
    assert redacted("nothing secret here", url) == "nothing secret here"


@pytest.mark.parametrize("word", ["plain", "order:17", "it's", "a b", "$(reboot)", "`x`", "\\n", "\u202e17'\\"])
def test_a_suggested_word_is_the_very_word_when_pasted(word):
    done = subprocess.run(["bash", "-c", f"printf %s {quoted(word)}"], capture_output=True, env={"LC_ALL": "C.UTF-8"})
    assert done.stdout.decode() == word
    assert not INVISIBLE.search(quoted(word))
    if not INVISIBLE.search(word):
        assert shlex.split(quoted(word)) == [word]


def test_times_read_well():
    assert [span(s) for s in (None, 0.04, 59, 119, 120, 7_200, 172_800)] == [
        "-",
        "0.0 s",
        "59 s",
        "119 s",
        "2 min",
        "2 h",
        "2 d",
    ]
    assert moment(0.0) == "1970-01-01 00:00:00 UTC"
    assert moment(None) == "-"
