"""Rows by alternate key, against our simulator of Dataverse: written from its documents, and not the service itself."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from twiceproof import Absent, Happened, Misuse, NotDone, OutcomeUnknown, Unknown
from twiceproof.effects import dataverse
from twiceproof.effects.base import outgoing_headers
from twiceproof.effects.json_api import JsonApi
from twiceproof.prove.simulators import DataverseSimulator
from twiceproof.prove.simulators.server import SimulatedAnswer

KEY, OTHER = "tp_" + "a1" * 16, "tp_" + "b2" * 16
BY = {"shop_id": "A-17"}


@pytest.fixture
def simulator() -> Iterator[DataverseSimulator]:
    with DataverseSimulator({"shop_orders": ["shop_id"], "shop_lines": ["shop_id", "shop_line"]}) as running:
        yield running


@pytest.fixture
def org(simulator: DataverseSimulator) -> JsonApi:
    return dataverse.environment(simulator.url, lambda: "token", timeout=5)


def patches(simulator: DataverseSimulator) -> list[Any]:
    return [one for one in simulator.requests if one.method == "PATCH"]


# -- one request decides -----------------------------------------------------------------------------


def test_an_upsert_creates_and_then_updates(simulator: DataverseSimulator, org: JsonApi) -> None:
    first = dataverse.upsert(org, "shop_orders", BY, {"shop_total": 1}).perform(KEY)
    second = dataverse.upsert(org, "shop_orders", BY, {"shop_total": 2}).perform(OTHER)
    assert (first.created, second.created, first.id == second.id, first.etag != second.etag) == (
        True,
        False,
        True,
        True,
    )
    assert simulator.rows("shop_orders") == [{"shop_id": "A-17", "shop_total": 2}]


def test_if_match_star_never_creates(simulator: DataverseSimulator, org: JsonApi) -> None:
    """The header that an upsert is sometimes shown with: it means update only."""
    effect = dataverse.update_only(org, "shop_orders", BY, {"shop_total": 1})
    with pytest.raises(NotDone, match="never creates") as caught:
        effect.perform(KEY)
    assert caught.value.data["final"] is True
    assert [one.headers["if-match"] for one in patches(simulator)] == ["*"]
    assert simulator.rows("shop_orders") == []
    simulator.insert("shop_orders", BY)
    assert effect.perform(KEY).created is False
    assert simulator.rows("shop_orders") == [{"shop_id": "A-17", "shop_total": 1}]


@pytest.mark.parametrize("mark", ["", "shop_effect"])
def test_of_25_that_create_one_wins_25_times(simulator: DataverseSimulator, org: JsonApi, mark: str) -> None:
    def create(number: int) -> bool:
        key = f"tp_{number:032x}"
        try:
            effect = dataverse.create_only(
                org, "shop_orders", {"shop_id": f"R{number // 25}"}, {"shop_by": number}, mark=mark
            )
            return effect.perform(key).created is True
        except NotDone as error:
            assert error.data["final"] is True and "there already" in str(error)
            return False

    with ThreadPoolExecutor(25) as pool:
        won = list(pool.map(create, range(625)))
    assert [sum(won[start : start + 25]) for start in range(0, 625, 25)] == [1] * 25
    assert len(simulator.rows("shop_orders")) == 25


def test_a_row_of_an_earlier_attempt_is_recognised_by_its_mark(simulator: DataverseSimulator, org: JsonApi) -> None:
    effect = dataverse.create_only(org, "shop_orders", BY, {"shop_total": 1}, mark="shop_effect")
    simulator.lose_answer("PATCH")
    with pytest.raises(OutcomeUnknown):
        effect.perform(KEY)
    assert effect.perform(KEY).created is True
    assert isinstance(effect.look(KEY), Happened) and isinstance(effect.look(OTHER), Unknown)


def test_without_a_mark_the_values_tell_after_a_lost_answer(simulator: DataverseSimulator, org: JsonApi) -> None:
    effect = dataverse.create_only(org, "shop_orders", BY, {"shop_total": 1})
    assert effect.look(KEY) == Absent()
    simulator.lose_answer("PATCH")
    with pytest.raises(OutcomeUnknown):
        effect.perform(KEY)
    assert isinstance(effect.look(KEY), Happened)
    assert isinstance(dataverse.create_only(org, "shop_orders", BY, {"shop_total": 2}).look(KEY), Unknown)


def test_existing_and_outdated_are_told_apart_by_their_codes(simulator: DataverseSimulator, org: JsonApi) -> None:
    simulator.insert("shop_orders", {**BY, "shop_total": 1})
    with pytest.raises(NotDone, match="already exists"):
        dataverse.create_only(org, "shop_orders", BY, {}).perform(KEY)
    told = {"error": {"code": "0x80060882", "message": "The version doesn't match."}}
    simulator.refuse("PATCH", SimulatedAnswer(412, told))
    with pytest.raises(NotDone, match="version") as caught:
        dataverse.create_only(org, "shop_orders", BY, {}).perform(KEY)
    assert "there already" not in str(caught.value)
    simulator.refuse("PATCH", SimulatedAnswer(412, told))  # to a change it means: read again
    assert dataverse.change(org, "shop_orders", BY, lambda row: {"shop_total": 5}).perform(KEY).created is False


def test_an_upsert_that_loses_a_race_may_be_tried_again(simulator: DataverseSimulator, org: JsonApi) -> None:
    simulator.refuse("PATCH", SimulatedAnswer(412, {"error": {"code": "0x80060892", "message": "exists"}}))
    effect = dataverse.upsert(org, "shop_orders", BY, {"shop_total": 1})
    with pytest.raises(NotDone) as caught:
        effect.perform(KEY)
    assert "final" not in caught.value.data
    assert effect.perform(KEY).created is True


def test_throttling_is_clean_and_says_how_long(simulator: DataverseSimulator, org: JsonApi) -> None:
    simulator.throttle(41)
    with pytest.raises(NotDone) as caught:
        dataverse.upsert(org, "shop_orders", BY, {"shop_total": 1}).perform(KEY)
    assert caught.value.data == {"retry_after": 41.0}
    assert simulator.rows("shop_orders") == []


@pytest.mark.parametrize(("state", "final"), [("Pending", False), ("InProgress", False), ("Failed", False), ("", True)])
def test_a_key_that_is_not_active_is_refused_before_anything_is_written(state: str, final: bool) -> None:
    tables = {"shop_orders": ["shop_id"] if state else ["shop_other"]}
    with DataverseSimulator(tables, key_states={"shop_orders": state or "Active"}) as simulator:
        org = dataverse.environment(simulator.url, lambda: "token")
        with pytest.raises(NotDone, match="alternate key") as caught:
            dataverse.upsert(org, "shop_orders", BY, {"shop_total": 1}).perform(KEY)
        assert caught.value.data.get("final", False) is final
        assert patches(simulator) == []


def test_a_key_is_asked_for_once(simulator: DataverseSimulator, org: JsonApi) -> None:
    for total in range(3):
        dataverse.upsert(org, "shop_orders", BY, {"shop_total": total}).perform(KEY)
    assert sum("EntityDefinitions" in one.path for one in simulator.requests) == 1


def test_a_key_of_two_columns_and_a_quote_is_addressed(simulator: DataverseSimulator, org: JsonApi) -> None:
    effect = dataverse.upsert(org, "shop_lines", {"shop_id": "O'Hara ü", "shop_line": 2}, {"shop_total": 1})
    assert effect.perform(KEY).created is True and effect.perform(KEY).created is False
    assert simulator.rows("shop_lines") == [{"shop_id": "O'Hara ü", "shop_line": 2, "shop_total": 1}]


@pytest.mark.parametrize("value", ["2026-11-18T10:00", "a/b", "50%", "a&b", "", "\u200b", True, 1.5, None])
def test_a_value_that_cannot_address_a_row_is_refused(org: JsonApi, value: Any) -> None:
    with pytest.raises(Misuse):
        dataverse.upsert(org, "shop_orders", {"shop_id": value}, {})


def test_a_column_is_given_once_and_names_are_names(org: JsonApi) -> None:
    with pytest.raises(Misuse, match="give it once"):
        dataverse.upsert(org, "shop_orders", BY, {"shop_id": "other"})
    for wrong in (lambda: dataverse.upsert(org, "a)/b(", BY, {}), lambda: dataverse.upsert(org, "shop_orders", {}, {})):
        with pytest.raises(Misuse):
            wrong()


def test_requests_lead_back_and_secrets_are_not_described(simulator: DataverseSimulator, org: JsonApi) -> None:
    effect = dataverse.upsert(org, "shop_orders", BY, {"shop_total": 1})
    token = outgoing_headers.set({"correlation-id": "order-17", "traceparent": "00-1-2-03"})
    try:
        effect.perform(KEY)
    finally:
        outgoing_headers.reset(token)
    (sent,) = patches(simulator)
    names = ("correlation-id", "traceparent", "twiceproof-effect-key", "authorization")
    assert [sent.headers[name] for name in names] == ["order-17", "00-1-2-03", KEY, "Bearer token"]
    assert "token" not in str(effect.describe())


# -- changes of what was read ------------------------------------------------------------------------


def add_one(row: dict[str, Any]) -> dict[str, Any]:
    return {"shop_total": row["shop_total"] + 1}


def test_forty_marked_increments_count_to_forty(simulator: DataverseSimulator, org: JsonApi) -> None:
    simulator.insert("shop_orders", {**BY, "shop_total": 0})
    effect = dataverse.change(org, "shop_orders", BY, add_one, mark="shop_effects")

    def apply(number: int) -> None:
        while True:
            try:
                effect.perform(f"tp_{number:032x}")
                return
            except NotDone as error:  # others were faster, five times
                assert "final" not in error.data

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(apply, range(40)))
    assert simulator.rows("shop_orders")[0]["shop_total"] == 40


def test_an_increment_whose_answer_is_lost_is_applied_once(simulator: DataverseSimulator, org: JsonApi) -> None:
    simulator.insert("shop_orders", {**BY, "shop_total": 0})
    effect = dataverse.change(org, "shop_orders", BY, add_one, mark="shop_effects")
    simulator.lose_answer("PATCH")
    effect.perform(KEY)
    effect.perform(KEY)
    assert simulator.rows("shop_orders")[0]["shop_total"] == 1
    assert len(patches(simulator)) == 1


def test_a_lost_request_that_arrives_late_is_not_applied_again(simulator: DataverseSimulator, org: JsonApi) -> None:
    simulator.insert("shop_orders", {**BY, "shop_total": 0})
    simulator.refuse("PATCH", SimulatedAnswer(503))  # it is still on its way
    effect = dataverse.change(org, "shop_orders", BY, add_one, mark="shop_effects")
    with pytest.raises(OutcomeUnknown):
        effect.perform(KEY)
    effect.perform(KEY)
    late = patches(simulator)[0]
    assert simulator.handle(late).status == 412  # its version is gone
    assert simulator.rows("shop_orders")[0]["shop_total"] == 1


def test_a_refusal_after_a_lost_answer_does_not_make_it_undone(simulator: DataverseSimulator, org: JsonApi) -> None:
    simulator.insert("shop_orders", {**BY, "shop_total": 0})
    effect = dataverse.change(org, "shop_orders", BY, add_one, mark="shop_effects")
    effect.perform(OTHER)  # the key is known to be active: the next GET reads the row
    simulator.lose_answer("PATCH")
    simulator.refuse("GET", SimulatedAnswer(200, {**BY, "shop_total": 1, "@odata.etag": 'W/"0"'}))
    simulator.throttle(5, "GET")
    with pytest.raises(OutcomeUnknown):
        effect.perform(KEY)


def test_an_increment_without_a_mark_is_refused_and_a_set_value_needs_none(
    simulator: DataverseSimulator, org: JsonApi
) -> None:
    simulator.insert("shop_orders", {**BY, "shop_total": 0})
    with pytest.raises(Misuse, match="mark="):
        dataverse.change(org, "shop_orders", BY, add_one).perform(KEY)
    effect = dataverse.change(org, "shop_orders", BY, lambda row: {"shop_total": 7})
    effect.perform(KEY)
    assert (effect.repeat.kind, simulator.rows("shop_orders")[0]["shop_total"]) == ("safe", 7)


def test_a_change_that_the_row_no_longer_remembers_is_unknown(simulator: DataverseSimulator, org: JsonApi) -> None:
    simulator.insert("shop_orders", {**BY, "shop_total": 0})
    effect = dataverse.change(org, "shop_orders", BY, add_one, mark="shop_effects")
    for number in range(dataverse.MARKS - 1):
        effect.perform(f"tp_{number:032x}")
    assert effect.look(KEY) == Absent()
    effect.perform(OTHER)
    assert isinstance(effect.look(KEY), Unknown) and isinstance(effect.look(OTHER), Happened)


def test_a_change_with_other_captured_values_is_another_effect(org: JsonApi) -> None:
    def set_to(total: int) -> dict[str, Any]:
        return dataverse.change(org, "shop_orders", BY, lambda row: {"shop_total": total}).describe()

    assert set_to(1) == set_to(1) != set_to(2)


def test_a_row_that_is_missing_is_not_changed(org: JsonApi) -> None:
    with pytest.raises(NotDone, match="no row"):
        dataverse.change(org, "shop_orders", BY, add_one, mark="shop_effects").perform(KEY)
