"""The form of a short id: fixed, without the key, and never that of an id of an older release."""

from __future__ import annotations

from base64 import urlsafe_b64decode

import pytest

from twiceproof import Misuse
from twiceproof.claims.claim import (
    CLAIM,
    ID_LETTERS,
    RUN,
    SHORT_LENGTH,
    address_of,
    is_short_id,
    run_id,
    short_id,
    shown_id,
    shown_run,
    space_of_run,
)

SPACES = [
    "default/buy/order:1",
    "default/buy/order:2",
    "acme/buy/order:1",
    "a/b/c",
    "default/buy/" + "x" * 1_000,
    "default/grüße/köln:☂",
]


def test_a_space_has_the_same_id_on_every_machine() -> None:
    assert short_id("default/buy/order:1") == "run_b0tpf8qq5qd3zbs71fj4d"


@pytest.mark.parametrize("space", SPACES)
def test_a_short_id_has_one_length_and_plain_letters(space: str) -> None:
    short = short_id(space)
    assert len(short) == SHORT_LENGTH == 25
    assert set(short.removeprefix("run_")) <= set(ID_LETTERS)
    assert is_short_id(short)


def test_different_spaces_have_different_ids() -> None:
    spaces = [f"default/buy/order:{number}" for number in range(20_000)]
    assert len({short_id(space) for space in spaces}) == len(spaces)


def test_keys_that_grow_share_the_first_letters_of_their_ids() -> None:
    """So their index records are neighbours in the database."""
    assert len({short_id(f"default/buy/order:{number}")[:8] for number in range(1_000, 2_000)}) == 10


@pytest.mark.parametrize("length", range(3, 60))
def test_an_id_of_an_older_release_never_has_the_form_of_a_short_one(length: int) -> None:
    """Base64 has no text whose length is 1 modulo 4; a short id has just such a length."""
    long = run_id("a/b/" + "k" * length)
    assert len(long.removeprefix("run_")) % 4 != 1
    assert not is_short_id(long)


@pytest.mark.parametrize("space", SPACES)
def test_a_short_id_is_never_read_as_an_id_of_an_older_release(space: str) -> None:
    short = short_id(space)
    with pytest.raises(ValueError, match=r"padding|1 more than a multiple"):
        urlsafe_b64decode(short.removeprefix("run_") + "===")
    with pytest.raises(Misuse, match="not the id of a run"):
        space_of_run(short)


def test_every_single_wrong_letter_is_noticed() -> None:
    short = short_id("default/buy/order:1")
    for place in range(4, len(short)):
        for letter in set(ID_LETTERS) - {short[place]}:
            assert not is_short_id(short[:place] + letter + short[place + 1 :])


@pytest.mark.parametrize(
    "text", ["", "run_", "run_b0tpf8qq5qd3zbs71fj4", "RUN_B0TPF8QQ5QD3ZBS71FJ4D", "run_" + "u" * 21]
)
def test_what_is_no_short_id_is_told_from_one(text: str) -> None:
    assert not is_short_id(text)


def test_a_claim_that_is_no_run_keeps_its_long_id() -> None:
    assert shown_id(address_of("default", "buy", "order:1", RUN)) == short_id("default/buy/order:1")
    assert shown_id(address_of("default", "buy", "order:1", CLAIM)) == run_id("default/buy/order:1")


def test_a_stored_reference_is_shown_short_and_anything_else_as_it_is() -> None:
    short = short_id("default/buy/order:1")
    assert shown_run(run_id("default/buy/order:1")) == short
    assert [shown_run(text) for text in (short, "", "x")] == [short, "", "x"]
