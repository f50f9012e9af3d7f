"""The accounts of the writers: which errors are reported, and which are not."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.faults.catalogue.accounts import Accounts, compared, read_accounts
from tests.faults.catalogue.writers import Board, receipt

KEY = "once:0:1:0"
TOLD = receipt(KEY)


def accounts(done=1, heard=TOLD, unknown="", fences=()):
    return Accounts(
        asked={KEY},
        done=Counter({KEY: done}),
        heard={KEY: heard} if heard else {},
        unknown={KEY: unknown} if unknown else {},
        fences={"fences/0": list(fences)},
    )


def first_words(complaints):
    return [complaint.partition(":")[0] for complaint in complaints]


@pytest.mark.parametrize(
    ("kept", "complaints"),
    [
        (accounts(), []),
        (accounts(done=2), ["done twice"]),
        (accounts(done=0), ["answered without work"]),
        (accounts(heard="receipt of another"), ["wrong answer"]),
        (accounts(heard="", unknown="StoreUnavailable"), []),
        (accounts(heard="", unknown="InProgress"), ["took itself for another"]),
        (accounts(fences=(7, 8, 20)), []),
        (accounts(fences=(7, 8, 8)), ["fence drawn twice"]),
    ],
)
def test_what_must_never_be_is_complained_of_and_nothing_else(kept, complaints):
    assert first_words(kept.complaints()) == complaints


@pytest.mark.parametrize(
    ("kept", "again", "more", "complaints"),
    [
        (accounts(), TOLD, 0, []),
        (accounts(), "NeedsReview", 0, ["acknowledged and lost"]),
        (accounts(), TOLD, 1, ["done again"]),
        (accounts(heard="", done=0), TOLD, 1, []),
        (accounts(heard="", done=1), TOLD, 0, []),
        (accounts(heard="", done=1), "NeedsReview", 0, []),
        (accounts(heard="", done=1), TOLD, 1, ["done again"]),
        (accounts(heard="", done=0), TOLD, 0, ["answered without work"]),
        (accounts(heard="", done=1), "InProgress", 0, ["neither done nor in review"]),
    ],
)
def test_asked_again_what_was_answered_is_answered_alike_and_the_rest_ends(kept, again, more, complaints):
    assert first_words(compared(kept, {KEY: again}, Counter({KEY: more}))) == complaints


def test_the_accounts_are_read_from_the_files_of_all_writers(tmp_path):
    (tmp_path / "writer-0.log").write_text(f"asked\t{KEY}\t\ndid\t{KEY}\t\nheard\t{KEY}\treceipt\ndrew\tfences/0\t7\n")
    (tmp_path / "writer-1.log").write_text(f"did\t{KEY}\t\nunknown\tonce:1\tInProgress\n")

    class Here:
        directory = tmp_path

    found = read_accounts(Here)
    assert (found.asked, found.done[KEY], found.heard, found.unknown, found.fences) == (
        {KEY},
        2,
        {KEY: "receipt"},
        {"once:1": "InProgress"},
        {"fences/0": [7]},
    )


def test_the_board_tells_where_somebody_is_and_how_many_answers_came():
    board = Board(2)
    assert (board.points(), board.answers(), board.stopped) == (set(), 0, False)
    board.at(1, 3, 2)
    board.answered(0)
    assert not board.all_at_work
    board.answered(1)
    assert board.all_at_work
    board.stop()
    assert (board.points(), board.answers(), board.stopped) == ({"recording a result"}, 2, True)
    board.at(1, 3, 0)
    assert board.points() == set()
