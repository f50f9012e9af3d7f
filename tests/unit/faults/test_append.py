"""Tiny histories of batches whose verdict is known, both ways."""

from __future__ import annotations

from tests.faults.linearizability import Append, check_appends


def batch(reads, appends=None, landed=True, at=0, until=None):
    return Append("c", reads, appends or {}, landed, at, at + 1 if until is None else until)


def anomalies(*history):
    return check_appends(history).anomalies


A1 = batch({"a": ()}, {"a": 1})
A2 = batch({"a": (1,)}, {"a": 2}, at=2)


def test_batches_one_after_another_are_in_order():
    assert anomalies(A1, A2, batch({"a": (1, 2)}, at=4)) == ()


def test_a_list_begins_alike_for_everybody():
    assert anomalies(A1, A2, batch({"a": (2,)}, at=4))


def test_a_value_that_nobody_appended_is_an_anomaly():
    assert "nobody appended" in anomalies(A1, batch({"a": (1, 9)}, at=4))[0]


def test_a_value_is_there_once():
    assert "twice" in anomalies(A1, batch({"a": (1, 1)}, at=4))[0]


def test_a_refused_batch_leaves_nothing():
    refused = batch({"a": (1,)}, {"a": 2}, landed=False, at=2)
    assert anomalies(A1, refused, batch({"a": (1,)}, at=4)) == ()
    assert "nothing was written" in anomalies(A1, refused, batch({"a": (1, 2)}, at=4))[0]


def test_a_batch_that_nobody_heard_of_may_have_landed_or_not():
    lost = Append("c", {"a": (1,)}, {"a": 2}, None, 2)
    assert anomalies(A1, lost, batch({"a": (1,)}, at=4)) == ()
    assert anomalies(A1, lost, batch({"a": (1, 2)}, at=4)) == ()


def test_a_batch_lands_as_a_whole():
    both = batch({"a": (), "b": ()}, {"a": 1, "b": 1}, until=9)
    assert anomalies(both, batch({"a": (1,), "b": (1,)}, at=4)) == ()
    assert anomalies(both, batch({"a": (), "b": ()}, at=4)) == ()
    assert "comes before the next" in anomalies(both, batch({"a": (1,), "b": ()}, at=4))[0]


def test_a_batch_that_nobody_heard_of_lands_as_a_whole_too():
    lost = Append("c", {"a": (), "b": ()}, {"a": 1, "b": 1}, None, 0)
    assert anomalies(lost, batch({"a": (1,), "b": (1,)}, at=4)) == ()
    assert anomalies(lost, batch({"a": (1,), "b": ()}, at=4))


def test_two_that_each_overlook_the_other_go_round_in_a_circle():
    one = batch({"a": (), "b": ()}, {"a": 1}, until=9)
    other = batch({"a": (), "b": ()}, {"b": 2}, until=9)
    assert anomalies(one, batch({"a": (1,), "b": ()}, {"b": 2}, until=9)) == ()
    assert "read b before it was changed by" in anomalies(one, other)[0]


def test_what_had_ended_is_seen():
    assert anomalies(A1, batch({"a": ()}, at=4))
    assert anomalies(A1, batch({"a": ()}, at=0)) == ()


def test_an_append_that_was_lost_is_missed_by_whoever_comes_later():
    assert "had ended before" in anomalies(A1, A2, batch({"a": (1,)}, at=9))[0]
