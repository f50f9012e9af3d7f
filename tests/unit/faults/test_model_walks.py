"""Random walks of the model, one operation after another: all are accepted, and none in which a look is told a lie."""

from __future__ import annotations

from hypothesis import assume, given, settings
from hypothesis import strategies as st
from msgspec import structs

from tests.faults.linearizability import Linearizable, Model, Operation, Violation, check
from tests.faults.linearizability.model import (
    FREE,
    Absent,
    Busy,
    Complete,
    Done,
    Fail,
    Failed,
    Held,
    InReview,
    Look,
    Park,
    Release,
    Renew,
    Settle,
    Take,
    When,
)

MODEL = Model()

fences = st.integers(1, 40)
keeps = st.sampled_from([None, 5, 30])
acts = st.one_of(
    st.builds(
        Take,
        owner=st.sampled_from("abc"),
        lease=st.integers(2, 20),
        repeat=st.sampled_from(["never", "safe"]),
        fingerprint=st.sampled_from(["", "f", "g"]),
    ),
    st.builds(Renew, fences, st.integers(2, 20)),
    st.builds(Complete, fences, st.sampled_from("xyz"), keeps),
    st.builds(Fail, fences, st.sampled_from("EF"), st.booleans(), keeps),
    st.builds(Park, fences),
    st.builds(Release, fences),
    st.builds(Settle, st.booleans(), st.sampled_from("xyz"), keeps),
    st.just(Look()),
)


@st.composite
def walks(draw):
    """What the model says at even moments, and what the claim may be after each. Most holders show their own fence."""
    state, tick, history, possible = FREE, 0, [], [{FREE}]
    for act in draw(st.lists(acts, min_size=1, max_size=20)):
        if hasattr(act, "fence") and state.fence and draw(st.integers(0, 3)):
            act = structs.replace(act, fence=state.fence)
        tick += draw(st.sampled_from([2, 2, 6, 24]))
        moves = list(MODEL.moves(state, act, When(tick, tick, tick), state.highest + 1))
        answer, state = draw(st.sampled_from(moves))
        history.append(Operation("c", "k", act, answer, tick, tick))
        now = When(tick, tick, tick)
        possible.append({after for before in possible[-1] for after in MODEL.after(before, history[-1], now)})
    return history, possible[1:]


def with_a_look(history, nth, answer):
    """Somebody looks right after the nth operation."""
    tick = history[nth].returned + 1
    return [*history, Operation("looker", "k", Look(), answer, tick, tick)]


@given(walks())
@settings(deadline=None, max_examples=60)
def test_whatever_the_model_does_is_accepted(walk):
    assert isinstance(check(walk[0]), Linearizable)


@given(walks(), st.data())
@settings(deadline=None, max_examples=60)
def test_a_look_is_told_what_is_and_nothing_else(walk, data):
    history, possible = walk
    nth = data.draw(st.integers(0, len(history) - 1))
    tick = history[nth].returned + 1
    right = {answer for state in possible[nth] for answer, _ in MODEL.moves(state, Look(), When(tick, tick, tick), 0)}
    told = data.draw(st.sampled_from([Absent(), InReview(), *map(Busy, "abc"), *map(Done, "xyz"), *map(Failed, "EF")]))
    verdict = check(with_a_look(history, nth, told))
    assert isinstance(verdict, Linearizable if told in right else Violation)


@given(walks(), st.data())
@settings(deadline=None, max_examples=60)
def test_an_answer_that_is_lost_never_makes_a_history_worse(walk, data):
    """But that of a take: who was not told of a fence cannot show it."""
    history, _ = walk
    nth = data.draw(st.integers(0, len(history) - 1))
    assume(not isinstance(history[nth].answer, Held))
    lost = structs.replace(history[nth], answer=None, returned=None)
    assert isinstance(check([*history[:nth], lost, *history[nth + 1 :]]), Linearizable)
