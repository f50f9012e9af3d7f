"""What every store refuses, and how it says so. The whole list is in the contract suite; here are the words."""

import math

import pytest

from twiceproof.errors import BadWrite
from twiceproof.records import Address, Check, Insert, Remove, Replace
from twiceproof.stores.validate import validate_address, validate_due, validate_scan, validate_writes

AT = Address("shop", "claim", "key")


def refusal(*writes, limit=100):
    with pytest.raises(BadWrite) as caught:
        validate_writes(writes, limit)
    return str(caught.value)


@pytest.mark.parametrize(
    ("write", "words"),
    [
        (Insert(Address("", "claim", "key"), ""), "space is empty"),
        (Insert(Address("shop", "", "key"), ""), "kind is empty"),
        (Insert(Address("shop", "claim", ""), ""), "key is empty"),
        (Insert(Address("shop", "claim", "a\0"), ""), "NUL"),
        (Insert(Address("shop", "claim", "\ud800"), ""), "lone surrogate"),
        (Insert(Address("shop", "claim", "k" * 1_025), ""), "1,025 bytes"),
        (Insert(AT, b"bytes"), "body is text, not bytes"),
        (Insert(AT, "", state="s" * 33), "state has 33 bytes"),
        (Insert(AT, "", queue="q" * 257), "queue has 257 bytes"),
        (Insert(AT, "", lease=0), "out of range"),
        (Insert(AT, "", lease=math.nan), "not a number of seconds"),
        (Insert(AT, "", due_in=-1), "out of range"),
        (Replace(AT, ""), "exactly one condition"),
        (Remove(AT, fence=1, version="1"), "exactly one condition"),
        (Check(AT), "exactly one condition"),
        (Check(AT, absent=True, version="1"), "exactly one condition"),
        (Remove(AT, fence=0), "never drawn"),
        (Remove(AT, fence=2**63), "never drawn"),
    ],
)
def test_a_refusal_says_what_is_wrong_in_one_line_and_what_to_do(write, words):
    message = refusal(write)
    assert words in message
    assert "\n" not in message
    assert message.endswith(".")
    assert ";" in message or ": give" in message


@pytest.mark.parametrize(
    "write",
    [
        Insert(Address("s" * 1_400, "k" * 64, "é" * 512), "", state="s" * 32, queue="q" * 256),
        Insert(AT, "\x01\n", lease=0.001, due_in=0),
        Replace(AT, None, version=""),
        Remove(AT, fence=2**63 - 1),
        Check(AT, absent=True),
    ],
)
def test_what_is_just_within_the_limits_is_taken(write):
    validate_writes([write], 1)


def test_a_batch_is_looked_at_as_a_whole():
    other = Address("other", "claim", "key")
    assert "at least one" in refusal()
    assert "split them" in refusal(Insert(AT, ""), Insert(other, ""), limit=1)
    assert "one space" in refusal(Insert(AT, ""), Insert(other, ""))
    assert "names an address once" in refusal(Insert(AT, ""), Check(AT, absent=True))


def test_a_refusal_never_repeats_the_body():
    assert "secret" not in refusal(Insert(AT, "secret\0"))


@pytest.mark.parametrize("limit", [0, -1, 10_001])
def test_a_limit_out_of_range_is_refused(limit):
    with pytest.raises(BadWrite):
        validate_scan(limit, "claim", None, None)
    with pytest.raises(BadWrite):
        validate_due(limit, 5.0, "claim", ["q"])


@pytest.mark.parametrize("limit", [1, 10_000])
def test_a_limit_in_range_is_taken(limit):
    validate_scan(limit, "claim", "space", "held")
    validate_due(limit, 5.0, "claim", ["q", ""])


def test_a_set_of_queues_is_validated_as_a_list_is():
    for queues in (["q", "nul\0"], frozenset({"q", "nul\0"}), frozenset({"q", 5})):
        for _ in range(2):  # a refusal is not remembered as taken
            with pytest.raises(BadWrite):
                validate_due(10, 5.0, "claim", queues)
    validate_due(10, 5.0, "claim", frozenset({"q", ""}))


@pytest.mark.parametrize("hide", [-1, math.nan, math.inf, True, "5"])
def test_hiding_for_no_time_is_refused(hide):
    with pytest.raises(BadWrite):
        validate_due(10, hide, "claim", ["q"])


@pytest.mark.parametrize("poison", ["\ud800", "nul\0", "", "x" * 2_000])
def test_what_no_record_can_have_cannot_be_asked_for(poison):
    for ask in (
        lambda: validate_address(Address(poison, "claim", "self")),
        lambda: validate_scan(1, poison, None, None),
        lambda: validate_scan(1, "claim", poison, None),
        lambda: validate_due(1, 5.0, poison, []),
    ):
        with pytest.raises(BadWrite):
            ask()
