"""Batches: several writes that land together or not at all, to one space or, where a store links them, to several."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest

from ...errors import BadWrite
from ...records import Check, Conflict, Insert, Remove, Replace, Write, Written
from ...stores.base import Store
from .case import (
    StoreCase,
    StoreRequest,
    all_at_once,
    by_both_drivers,
    claim,
    in_one_batch,
    in_threads,
    is_absent,
    land,
    met,
    place,
    record_at,
    refuse,
)

__all__ = ["Batches", "LinkedSpaces"]


class Batches(StoreCase):
    @by_both_drivers
    @in_one_batch(4)
    def test_all_writes_of_a_batch_land(self, store: Store, ask: StoreRequest) -> None:
        fence = claim(store, place("held")).fence
        old = land(store, Insert(place("old"), ""))
        outcome = ask(
            store.write(
                Replace(place("held"), "done", fence=fence),
                Insert(place("message"), "hello"),
                Remove(place("old"), version=old.version),
                Check(place("stop"), absent=True),
            )
        )
        assert isinstance(outcome, Written)
        assert record_at(store, place("held")).body == "done"
        assert record_at(store, place("message")).body == "hello"
        assert is_absent(store, place("old"))
        assert is_absent(store, place("stop"))

    @by_both_drivers
    def test_several_batches_at_once_have_an_answer_each(self, store: Store, ask: StoreRequest) -> None:
        """More than one commit holds, and one of them conflicts."""
        taken = land(store, Insert(place(space="s7"), "theirs"))
        answers = ask(store.write_each([[Insert(place(space=f"s{nth}"), f"{nth}")] for nth in range(600)]))
        assert [nth for nth, answer in enumerate(answers) if not isinstance(answer, Written)] == [7]
        assert isinstance(answers[7], Conflict)
        assert answers[7].found is not None and answers[7].found.version == taken.version
        found = ask(store.read_each([place(space=f"s{nth}") for nth in (599, 7, 1_000)]))
        assert [one.record.body if one.record else None for one in found] == ["599", "theirs", None]
        assert len(ask(store.write_each([]))) == 0

    @by_both_drivers
    def test_an_index_record_of_another_space_lands_too(self, store: Store, ask: StoreRequest) -> None:
        index = place(space="index")
        outcome = ask(store.write(Insert(place(), "1", draw=True), also=Insert(index, "to it")))
        assert isinstance(outcome, Written)
        assert outcome.fence == record_at(store, place()).fence
        assert record_at(store, index).body == "to it"

    @by_both_drivers
    def test_a_write_and_its_index_record_do_not_hinder_each_other(self, store: Store, ask: StoreRequest) -> None:
        one, other = place(space="index 1"), place(space="index 2")
        land(store, Insert(one, "first"))
        assert isinstance(ask(store.write(Insert(place(), "1"), also=Insert(one, "second"))), Written)
        assert record_at(store, one).body == "first"
        refused = ask(store.write(Insert(place(), "2"), also=Insert(other, "to it")))
        assert isinstance(refused, Conflict) and refused.at == place()
        assert record_at(store, other).body == "to it"

    def test_index_records_of_many_callers_all_land(self, store: Store) -> None:
        """More than one commit takes; pairs of callers with the same one; one that is also written by itself."""
        spaces = [f"s{nth}" for nth in range(300)]
        writes = [
            store.write(Insert(place(space=f"{s} {n}"), ""), also=Insert(place(space=f"i {s}"), s))
            for s in spaces
            for n in (1, 2)
        ]
        answers = all_at_once(lambda: [*writes, store.write(Insert(place(space="i s7"), "s7"))])
        assert all(isinstance(answer, Written) for answer in answers[:600])
        assert [record_at(store, place(space=f"i {s}")).body for s in spaces] == spaces

    def test_an_index_record_of_the_same_space_is_refused(self, store: Store) -> None:
        with pytest.raises(BadWrite):
            store.write(Insert(place(1), ""), also=Insert(place(2), ""))
        assert is_absent(store, place(1))

    @in_one_batch(3)
    def test_the_records_of_a_batch_share_version_nonce_and_time(self, store: Store) -> None:
        landed = land(store, *(Insert(place(nth), "", draw=True) for nth in range(3)))
        records = [record_at(store, place(nth)) for nth in range(3)]
        assert {record.version for record in records} == {landed.version}
        assert {record.fence for record in records} == {landed.fence}
        assert len({record.nonce for record in records}) == 1
        assert len({record.updated_at for record in records}) == 1

    @pytest.mark.parametrize("misfit", [0, 1, 2, 3])
    @in_one_batch(4)
    def test_one_misfit_anywhere_stops_the_whole_batch(self, store: Store, misfit: int) -> None:
        fence = claim(store, place("held")).fence
        old = land(store, Insert(place("old"), ""))
        land(store, Insert(place("taken"), "theirs"))
        before = sorted(met(store), key=lambda record: record.at.key)
        writes: list[Write] = [
            Replace(place("held"), "done", fence=fence, draw=True),
            Insert(place("new"), ""),
            Remove(place("old"), version=old.version),
        ]
        writes.insert(misfit, Insert(place("taken"), "ours"))
        conflict = refuse(store, *writes)
        assert (conflict.at, conflict.found) == (place("taken"), record_at(store, place("taken")))
        assert sorted(met(store), key=lambda record: record.at.key) == before

    @pytest.mark.parametrize("kind", ["replace", "remove", "check"])
    @in_one_batch(2)
    def test_a_misfit_of_any_kind_stops_the_whole_batch(self, store: Store, kind: str) -> None:
        first = land(store, Insert(place("seen"), "1"))
        land(store, Replace(place("seen"), "2", version=first.version))
        stale: dict[str, Write] = {
            "replace": Replace(place("seen"), "3", version=first.version),
            "remove": Remove(place("seen"), version=first.version),
            "check": Check(place("seen"), version=first.version),
        }
        assert refuse(store, Insert(place("new"), ""), stale[kind]).at == place("seen")
        assert is_absent(store, place("new"))
        assert record_at(store, place("seen")).body == "2"

    @in_one_batch(3)
    def test_a_conflict_names_the_first_misfit(self, store: Store) -> None:
        land(store, Insert(place("b"), "first"))
        land(store, Insert(place("a"), "second"))
        writes = [Insert(place("fresh"), ""), Insert(place("b"), ""), Insert(place("a"), "")]
        assert refuse(store, *writes).at == place("b")
        assert refuse(store, *reversed(writes)).at == place("a")

    @in_one_batch(2)
    def test_a_batch_may_mix_kinds_of_one_space(self, store: Store) -> None:
        land(store, Insert(place(kind="claim"), "1"), Insert(place(kind="step"), "2"))
        assert [record_at(store, place(kind=kind)).body for kind in ("claim", "step")] == ["1", "2"]

    def test_a_batch_as_large_as_the_limit_lands(self, store: Store) -> None:
        land(store, *(Insert(place(nth), str(nth)) for nth in range(store.batch_limit)))
        assert len(met(store, limit=1_000)) == store.batch_limit

    def test_a_batch_over_the_limit_is_refused(self, store: Store) -> None:
        with pytest.raises(BadWrite):
            store.write(*(Insert(place(nth), "") for nth in range(store.batch_limit + 1))).block()
        assert met(store) == []

    def test_a_batch_of_two_spaces_is_refused(self, store: Store) -> None:
        with pytest.raises(BadWrite):
            store.write(Insert(place(space="one"), ""), Insert(place(space="two"), "")).block()
        assert met(store) == []

    def test_a_batch_that_names_an_address_twice_is_refused(self, store: Store) -> None:
        with pytest.raises(BadWrite):
            store.write(Insert(place(), "1"), Insert(place(), "2")).block()
        with pytest.raises(BadWrite):
            store.write(Check(place(), absent=True), Insert(place(), "2")).block()
        assert met(store) == []

    def test_an_empty_batch_is_refused(self, store: Store) -> None:
        with pytest.raises(BadWrite):
            store.write().block()

    @in_one_batch(2)
    def test_each_of_many_batches_at_once_has_its_own_outcome(self, store: Store) -> None:
        for nth in range(0, 40, 2):
            land(store, Insert(place(nth), "theirs"))
        outcomes = all_at_once(
            lambda: [store.write(Insert(place(f"beside {nth}"), ""), Insert(place(nth), "ours")) for nth in range(40)]
        )
        assert [type(outcome) for outcome in outcomes] == [Conflict, Written] * 20
        assert [is_absent(store, place(f"beside {nth}")) for nth in range(40)] == [True, False] * 20

    def test_batches_of_one_space_and_of_many_land_side_by_side(self, store: Store) -> None:
        spaces = [f"space {nth % 7}" for nth in range(40)]
        outcomes = all_at_once(
            lambda: [store.write(Insert(place(nth, space=space), "")) for nth, space in enumerate(spaces)]
        )
        assert [type(outcome) for outcome in outcomes] == [Written] * 40
        assert len({record.at for record in met(store)}) == 40

    def test_a_batch_the_database_refuses_harms_no_neighbour(self, store: Store) -> None:
        faulty = self.make_faulty(store)
        faulty.poison("bad", RuntimeError("out of range"))
        keys = [f"good {nth}" if nth != 7 else "bad" for nth in range(20)]
        outcomes = all_at_once(lambda: [store.write(Insert(place(key), "")) for key in keys])
        kinds = [type(outcome) for outcome in outcomes]
        assert kinds == [Written] * 7 + [RuntimeError] + [Written] * 12
        assert [is_absent(store, place(key)) for key in keys] == [key == "bad" for key in keys]

    @in_one_batch(2)
    def test_threads_each_get_the_outcome_of_their_own_batch(self, store: Store) -> None:
        def work(nth: int) -> bool:
            landed = land(store, Insert(place(nth), f"body {nth}"), Insert(place(f"{nth}b"), ""))
            record = record_at(store, place(nth))
            return (record.version, record.body) == (landed.version, f"body {nth}")

        assert all(in_threads(20, work))


def linking(test: Callable[..., None]) -> Callable[..., None]:
    """Of a test that links spaces. A store that does not refuses such a write whole, which is asserted then."""

    @functools.wraps(test)
    def run(self: Any, store: Store, **given: Any) -> None:
        if store.links_spaces:
            test(self, store, **given)
            return
        with pytest.raises(BadWrite, match="one space"):
            store.write(Insert(place(), ""), linked=[Insert(place(space="lane"), "")]).block()
        assert met(store) == []

    return run


class LinkedSpaces(StoreCase):
    @by_both_drivers
    @linking
    def test_writes_to_three_spaces_land_together(self, store: Store, ask: StoreRequest) -> None:
        fence = claim(store, place()).fence
        lane = land(store, Insert(place(space="lane"), "1"))
        old = land(store, Insert(place("old", space="lane"), ""))
        outcome = ask(
            store.write(
                Replace(place(), "done", fence=fence, draw=True),
                Insert(place("step"), "2"),
                linked=[
                    Replace(place(space="lane"), "2", version=lane.version),
                    Remove(place("old", space="lane"), version=old.version),
                    Insert(place(space="message"), "hello"),
                ],
            )
        )
        assert isinstance(outcome, Written)
        done = record_at(store, place())
        assert (done.body, done.version, done.fence) == ("done", outcome.version, outcome.fence)
        assert record_at(store, place("step")).body == "2"
        assert record_at(store, place(space="lane")).body == "2"
        assert record_at(store, place(space="message")).body == "hello"
        assert is_absent(store, place("old", space="lane"))

    @pytest.mark.parametrize("space", ["shop", "lane", "message"])
    @linking
    def test_a_misfit_in_any_space_stops_all(self, store: Store, space: str) -> None:
        lane = land(store, Insert(place(space="lane"), "1"))
        taken = place("taken", space=space)
        land(store, Insert(taken, "theirs"))
        before = sorted(met(store), key=lambda record: (record.at.space, record.at.key))
        outcome = store.write(
            Insert(place("new"), ""),
            Insert(place("taken" if space == "shop" else "free"), "ours"),
            linked=[
                Replace(place(space="lane"), "2", version=lane.version),
                Insert(place("taken" if space == "lane" else "free", space="lane"), "ours"),
                Insert(place("taken" if space == "message" else "free", space="message"), "ours"),
            ],
        ).block()
        assert isinstance(outcome, Conflict)
        assert (outcome.at, outcome.found) == (taken, record_at(store, taken))
        assert sorted(met(store), key=lambda record: (record.at.space, record.at.key)) == before

    @linking
    def test_a_conflict_names_the_first_misfit_of_all_spaces(self, store: Store) -> None:
        for space in ("lane", "message"):
            land(store, Insert(place(space=space), "theirs"))
        linked = [Insert(place(space="lane"), ""), Insert(place(space="message"), "")]
        for order in (linked, linked[::-1]):
            outcome = store.write(Insert(place("new"), ""), linked=order).block()
            assert isinstance(outcome, Conflict) and outcome.at == order[0].at

    @linking
    def test_each_of_many_at_once_has_its_own_outcome(self, store: Store) -> None:
        """Some share a second space, and one of them is written to by itself at the same time."""
        for nth in range(0, 30, 3):
            land(store, Insert(place(f"taken {nth}", space=f"lane {nth % 4}"), ""))
        outcomes = all_at_once(
            lambda: [
                *(
                    store.write(
                        Insert(place(space=f"run {nth}"), ""),
                        linked=[Insert(place(f"taken {nth}", space=f"lane {nth % 4}"), "ours")],
                    )
                    for nth in range(30)
                ),
                store.write(Insert(place("alone", space="lane 1"), "")),
                store.write(Insert(place("alone", space="other"), "")),
            ]
        )
        assert [type(outcome) for outcome in outcomes] == [Conflict, Written, Written] * 10 + [Written] * 2
        assert [is_absent(store, place(space=f"run {nth}")) for nth in range(30)] == [True, False, False] * 10
        written = (
            record_at(store, place(space="run 1")).version,
            record_at(store, place("alone", space="other")).version,
        )
        assert written == (outcomes[1].version, outcomes[31].version)

    @linking
    def test_a_number_in_a_shared_space_is_given_out_once(self, store: Store) -> None:
        """Each caller takes the next number together with a write of its own, and again if another was faster."""
        land(store, Insert(place(space="lane"), "0"))

        def take_number(nth: int) -> int:
            for _ in range(100):  # one of twelve succeeds each time
                lane = record_at(store, place(space="lane"))
                number = int(lane.body) + 1
                outcome = store.write(
                    Insert(place(space=f"run {nth}"), str(number)),
                    linked=[
                        Replace(place(space="lane"), str(number), version=lane.version),
                        Insert(place(number, space="lane"), str(nth)),
                    ],
                ).block()
                if isinstance(outcome, Written):
                    return number
                assert isinstance(outcome, Conflict) and outcome.at.space == "lane"
            raise AssertionError("the number was never had")

        assert sorted(in_threads(12, take_number)) == list(range(1, 13))
        assert record_at(store, place(space="lane")).body == "12"

    @linking
    def test_a_lost_reply_is_found_to_have_landed(self, store: Store) -> None:
        self.make_faulty(store).lose_reply()
        outcome = store.write(Insert(place(), "ours"), linked=[Insert(place(space="lane"), "ours")]).block()
        assert isinstance(outcome, Written)
        assert [record_at(store, place(space=space)).body for space in ("shop", "lane")] == ["ours", "ours"]

    @linking
    def test_a_lost_request_is_made_again(self, store: Store) -> None:
        self.make_faulty(store).lose_request()
        outcome = store.write(Insert(place(), "ours"), linked=[Insert(place(space="lane"), "ours")]).block()
        assert isinstance(outcome, Written)
        assert [record_at(store, place(space=space)).body for space in ("shop", "lane")] == ["ours", "ours"]

    @linking
    def test_linked_writes_of_the_same_space_or_in_disorder_are_refused(self, store: Store) -> None:
        lane, message = Insert(place(space="lane"), ""), Insert(place(space="message"), "")
        again = Insert(place("again", space="lane"), "")
        many = [Insert(place(nth, space="lane"), "") for nth in range(store.batch_limit)]
        for linked in ([Insert(place("step"), "")], [lane, message, again], [lane, lane], many):
            with pytest.raises(BadWrite):
                store.write(Insert(place(), ""), linked=linked).block()
        assert met(store) == []
