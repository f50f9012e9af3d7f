"""How values look: without a browser and without a server."""

import json

import pytest

from twiceproof.server.ui.formatting import (
    CAPPED,
    SHOWN_BYTES,
    command_of,
    counted,
    href,
    iso,
    shown_value,
    sign_of,
    span,
    utc,
    visible,
)

DIGITS = '{"big":9223372036854775807,"exact":1.10,"tenth":0.1,"huge":' + str(2**200) + ',"face":"🦊"}'


@pytest.mark.parametrize("number", ["9223372036854775807", "1.10", "0.1", str(2**200), "🦊", "1e400", "-0.0"])
def test_json_is_laid_out_digit_by_digit(number):
    text = DIGITS.replace('"🦊"', f'"🦊","more":{number}' if number != "🦊" else '"🦊"')
    assert number in shown_value(text.encode()).text


def test_a_value_laid_out_is_the_same_value():
    assert json.loads(shown_value(DIGITS.encode()).text) == json.loads(DIGITS)


def test_a_large_value_is_cut_and_leads_to_the_whole():
    shown = shown_value(b'"' + b"x" * 5_000_000 + b'"', "/runs/run_1/value?of=input")
    assert (shown.cut, len(shown.text), shown.whole) == (True, SHOWN_BYTES, "/runs/run_1/value?of=input")
    assert shown.about == "4,883 KiB"


def test_a_value_is_not_cut_within_a_letter():
    shown = shown_value(('"' + "🦊" * 10_000 + '"').encode())
    assert shown.cut and set(shown.text) == {'"', "🦊"}


def test_what_is_not_json_is_shown_as_it_is():
    assert shown_value(b"not json").text == "not json"
    assert shown_value(None) is None


@pytest.mark.parametrize(
    ("seconds", "told"),
    [(None, "–"), (0.041, "41 ms"), (2.25, "2.2 s"), (59, "59 s"), (61, "1 min"), (14_400, "4 h"), (172_801, "2 d")],
)
def test_a_duration_is_told_in_its_largest_unit(seconds, told):
    assert span(seconds) == told


def test_times_are_utc():
    assert utc(1_792_000_000.5) == "2026-10-14 17:46:40 UTC"
    assert utc(1_792_000_000.5, exact=True) == "2026-10-14 17:46:40.500 UTC"
    assert iso(1_792_000_000.5) == "2026-10-14T17:46:40.500Z"
    assert (utc(1e300), iso(float("nan"))) == ("–", "")


def test_counts_end_at_their_cap():
    assert [counted(number) for number in (0, CAPPED, CAPPED + 1)] == ["0", "1,000", "1,000+"]


def test_addresses_are_percent_encoded():
    assert href("keys", "sync", "a/b?c#d\"'<>") == "/keys/sync/a%2Fb%3Fc%23d%22%27%3C%3E"
    assert href("runs", state="failed", after=None, flow="") == "/runs?state=failed"
    assert href() == "/"


def test_states_have_a_sign_a_word_and_a_tone():
    for state in ("done", "failed", "review", "held", "queued", "waiting", "unknown", "started", "retry", "waits"):
        sign = sign_of(state)
        assert sign.sign and sign.word and sign.tone
    assert sign_of("held", lapsed=True).word == "lease ran out"
    assert sign_of("some-other").word == "some other"


def test_what_cannot_be_seen_is_written_out():
    assert visible("a\u202eb\u200bc\nd") == "a\\u202eb\\u200bc\nd"


def test_commands_are_quoted_for_a_shell():
    assert command_of(("--store", "sqlite:///a b.db"), "runs", "show", "it's") == (
        "twiceproof --store 'sqlite:///a b.db' runs show 'it'\"'\"'s'"
    )
