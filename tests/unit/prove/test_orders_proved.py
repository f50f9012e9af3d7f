"""Events of one object in every order: the outside must be that of the order given."""

from __future__ import annotations

from typing import Any

import pytest

from twiceproof import App, by
from twiceproof.prove.fixture import NotSafe, prove
from twiceproof.prove.scenarios.scenario import out_of_order

app = App("memory://")
status: dict[str, int] = {}


@app.step(repeat="safe")
def write_last(version: int, text: int) -> None:
    status["text"] = text


@app.step(repeat="safe")
def write_newest(version: int, text: int) -> None:
    if version > status.get("version", 0):
        status.update(version=version, text=text)


@app.flow(key="order:1:{event[version]}")
def last_wins(event: dict[str, Any]) -> int:
    write_last(event["version"], event["text"])
    return int(event["version"])


@app.flow(key="order:1:{event[version]}")
def newest_wins(event: dict[str, Any]) -> int:
    write_newest(event["version"], event["text"])
    return int(event["version"])


@app.flow(key="order:1", order=by(object="1", version="{event[version]}"))
def ordered(event: dict[str, Any]) -> int:
    write_last(event["version"], event["text"])
    return int(event["version"])


FIRST, THEN = {"version": 1, "text": 10}, [{"version": 2, "text": 20}, {"version": 3, "text": 30}]


@pytest.mark.slow
def test_a_flow_whose_outcome_depends_on_the_order_is_found() -> None:
    with pytest.raises(NotSafe) as caught:
        prove(last_wins, FIRST, world=lambda: dict(status), then=THEN, depth=1)
    bad = {one.scenario: one.word for one in caught.value.report.bad}
    assert bad == dict.fromkeys(("order-1-3-2", "order-2-3-1", "order-3-1-2", "order-3-2-1"), "differs")


@pytest.mark.slow
@pytest.mark.parametrize("flow", [newest_wins, ordered], ids=["in the step", "declared"])
def test_one_that_keeps_the_newest_is_safe_in_every_order(flow: Any) -> None:
    report = prove(flow, FIRST, world=lambda: dict(status), then=THEN, depth=1)
    assert len([one for one in report.verdicts if one.scenario.startswith("order-")]) == 6


def test_orders_are_bounded_and_the_order_given_is_the_first() -> None:
    assert [len(list(out_of_order(events))) for events in (1, 2, 4, 9)] == [0, 2, 24, 24]
    assert next(iter(out_of_order(9))).order == tuple(range(9))
