"""Errors: one tree, one line, data for programs, and a way through pickle."""

from __future__ import annotations

import copy
import inspect
import multiprocessing
import pickle
import re
from typing import Any

import pytest

import twiceproof
from twiceproof import errors
from twiceproof.claims.claim import Fault
from twiceproof.errors import (
    ClaimError,
    InProgress,
    Misuse,
    NotDone,
    OutcomeUnknown,
    PriorFailure,
    TwiceproofError,
    TwiceproofWarning,
)

ERRORS = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, TwiceproofError)]
WARNINGS = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, TwiceproofWarning)]


@pytest.mark.parametrize("kind", ERRORS)
@pytest.mark.parametrize("message", ["two\nlines", "a\r\nb", "tab\there", "sep\u2028arated\x85", " edges \n"])
def test_every_error_reads_as_one_line(kind: type[TwiceproofError], message: str) -> None:
    text = str(kind(message))
    assert len(text.splitlines()) == 1
    assert text == text.strip()


@pytest.mark.parametrize("kind", ERRORS)
def test_every_error_goes_through_pickle_with_its_data(kind: type[TwiceproofError]) -> None:
    more = {} if kind in (NotDone, OutcomeUnknown) else {"key": "order:1", "fault": Fault("ValueError", "no")}
    error = kind("it failed; try again", retry_after=1.5, **more)
    for other in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        assert (type(other), str(other), other.data) == (kind, str(error), error.data)
        assert other.retry_after == 1.5


def _raise(number: int) -> None:
    raise InProgress("pay is being worked on; try again in 3.0 s.", owner="ann", retry_after=3.0, key=str(number))


def test_an_error_comes_back_whole_from_a_worker_process() -> None:
    context = multiprocessing.get_context("fork")
    with context.Pool(1) as pool, pytest.raises(InProgress) as caught:
        pool.map(_raise, [7])
    assert (caught.value.owner, caught.value.retry_after, caught.value.key) == ("ann", 3.0, "7")


def test_data_is_read_as_attributes_and_what_is_not_there_says_what_is() -> None:
    error = PriorFailure("x", key="order:1", run="run_1")
    assert (error.key, error.run) == ("order:1", "run_1")
    with pytest.raises(AttributeError, match=r"PriorFailure has no 'colour'; it carries \['key', 'run'\]"):
        error.colour  # noqa: B018
    assert not hasattr(error, "colour")


def test_misuse_is_a_value_error_and_a_claim_in_the_way_is_not() -> None:
    assert issubclass(Misuse, ValueError)
    assert not issubclass(ClaimError, ValueError)


def test_the_tree_drawn_on_top_is_the_tree_there_is() -> None:
    drawn = re.findall(r"[├└]── (\w+)", errors.__doc__ or "")
    roots = ("TwiceproofError", "TwiceproofWarning")
    assert sorted([*drawn, *roots]) == sorted(kind.__name__ for kind in [*ERRORS, *WARNINGS])
    for line in (errors.__doc__ or "").splitlines():
        if found := re.match(r"([│ ]*)[├└]── (\w+)", line):
            depth = len(found[1]) // 4 + 1
            assert _depth(getattr(errors, found[2])) == depth, found[2]


def _depth(kind: Any) -> int:
    roots = (TwiceproofError, TwiceproofWarning)
    return 0 if kind in roots else 1 + _depth(next(base for base in kind.__bases__ if issubclass(base, roots)))


def test_every_error_and_warning_is_exported_from_its_module() -> None:
    named = {kind.__name__ for kind in ERRORS}
    named |= {n for n, k in inspect.getmembers(errors, inspect.isclass) if issubclass(k, TwiceproofWarning)}
    assert named == set(errors.__all__)


@pytest.mark.parametrize("kind", [k for k in ERRORS if issubclass(k, ClaimError)])
def test_every_claim_error_is_a_public_name(kind: type[ClaimError]) -> None:
    assert getattr(twiceproof, kind.__name__) is kind


def test_not_done_takes_the_words_that_mean_something_and_no_others() -> None:
    assert NotDone("no", retry_after=3).data == {"retry_after": 3}
    assert NotDone("no", final=True).data == {"final": True}
    assert NotDone("no").data == {}
    for word in ("finaly", "key", "retry"):
        with pytest.raises(TypeError, match=word):
            NotDone("no", **{word: True})
