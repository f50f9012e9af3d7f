"""A flow that changed under its run stops before anything is done, also with ids and beside others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.flows.stage import Stage, Style
from twiceproof import App, NeedsReview
from twiceproof.flows.engine import step_runner as carry

Called = Callable[..., Any]


class Release:
    """A flow as one release has it: a few steps. The first release is interrupted behind them."""

    def __init__(self, stage: Stage, style: Style, *, last: bool = True) -> None:
        self.stage = stage
        self.app: App = stage.process()
        self.style = style
        self.last = last

    def step(self, name: str, **options: Any) -> Called:
        def work(x: Any) -> Any:
            self.stage.do(f"{name} {x}")
            return x

        made: Called = self.style.step(self.app, work, name=name, **options)
        return made

    def once(self, name: str) -> Called:
        def work(x: str) -> str:
            self.stage.do(f"{name} {x}")
            return x

        async def awaiting(x: str) -> str:
            return work(x)

        made: Called = self.app.once(key="c:{x}", name=name)(awaiting if self.style.is_async else work)
        return made

    def gather(self, *calls: tuple[Called, str]) -> Any:
        if self.style.is_async:
            return self.app.gather(*(step(x) for step, x in calls))
        return self.app.gather(*(lambda step=step, x=x: step(x) for step, x in calls))  # type: ignore[misc]

    def run(self, steps: Callable[[], Any]) -> Any:
        def body(order: int) -> Any:
            yield from steps()
            if not self.last:
                raise KeyboardInterrupt
            return "done"

        return self.style.flow(self.app, body)(1)


def first(stage: Stage, style: Style, write: Callable[[Release], Any]) -> None:
    release = Release(stage, style, last=False)
    with pytest.raises(KeyboardInterrupt):
        release.run(lambda: write(release))


def then(stage: Stage, style: Style, write: Callable[[Release], Any]) -> Any:
    release = Release(stage, style)
    return release.run(lambda: write(release))


# -- renamed -------------------------------------------------------------------------------------


def loop(release: Release, name: str) -> Any:
    charge = release.step(name, id="{x}")
    for x in "ab":
        yield charge(x)


def guarded(release: Release, name: str) -> Any:
    charge = release.once(name)
    for x in "ab":
        yield charge(x)


def gathered(release: Release, name: str) -> Any:
    charge = release.step(name, id="{x}")
    yield release.gather((charge, "a"), (charge, "b"))


def gathered_without_ids(release: Release, name: str) -> Any:
    yield release.gather((release.step(name), "a"), (release.step("mail"), "b"))


def batch(release: Release, name: str) -> Any:
    yield release.app.each(["a", "b"], release.step(name), key="{item}")


@pytest.mark.parametrize("shape", [loop, guarded, gathered, gathered_without_ids, batch])
def test_a_renamed_step_stops_the_run_before_anything_is_done(stage: Stage, style: Style, shape: Any) -> None:
    first(stage, style, lambda release: shape(release, "charge"))
    done = dict(stage.effects)
    with pytest.raises(NeedsReview, match=r"bill.* is new before charge"):
        then(stage, style, lambda release: shape(release, "bill"))
    assert stage.effects == done


@pytest.mark.parametrize("shape", [loop, guarded, gathered, gathered_without_ids, batch])
def test_the_same_steps_are_answered(stage: Stage, style: Style, shape: Any) -> None:
    first(stage, style, lambda release: shape(release, "charge"))
    done = dict(stage.effects)
    assert then(stage, style, lambda release: shape(release, "charge")) == "done"
    assert stage.effects == done


@pytest.mark.parametrize("shape", [gathered_without_ids, gathered, batch])
def test_of_an_earlier_release_nobody_knows_which_ran_beside_which(
    stage: Stage, style: Style, shape: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its runs hold no places: a flow that has not changed goes on with them."""
    note = carry.EntryNote
    with monkeypatch.context() as earlier:
        earlier.setattr(carry, "EntryNote", lambda *args, place, **more: note(*args, **more))
        first(stage, style, lambda release: shape(release, "charge"))

    def more(release: Release) -> Any:
        yield from shape(release, "charge")
        yield release.step("ship")("x")

    assert then(stage, style, more) == "done"


# -- removed -------------------------------------------------------------------------------------


def looped_items(release: Release, xs: str) -> Any:
    reserve = release.step("reserve", id="{x}")
    for x in xs:
        yield reserve(x)


def batched_items(release: Release, xs: str) -> Any:
    yield release.app.each(list(xs), release.step("reserve"), key="{item}")


def gathered_items(release: Release, xs: str) -> Any:
    reserve = release.step("reserve", id="{x}")
    yield release.gather(*((reserve, x) for x in xs))


ITEMS = pytest.mark.parametrize("items", [looped_items, batched_items, gathered_items])


@ITEMS
def test_a_dropped_item_stops_the_run_before_the_next_step_acts(stage: Stage, style: Style, items: Any) -> None:
    """What comes after the loop may have been made of it: a total, say."""
    first(stage, style, lambda release: items(release, "ab"))

    def shorter(release: Release) -> Any:
        yield from items(release, "a")
        yield release.step("charge")("total")

    with pytest.raises(NeedsReview, match=r"charge is new before reserve\[b\]"):
        then(stage, style, shorter)
    assert "charge total" not in stage.effects


@ITEMS
def test_a_new_item_and_a_new_step_behind_the_loop_are_done(stage: Stage, style: Style, items: Any) -> None:
    first(stage, style, lambda release: items(release, "ab"))

    def longer(release: Release) -> Any:
        yield from items(release, "cab")
        yield release.step("charge")("total")

    assert then(stage, style, longer) == "done"
    assert stage.effects == {"reserve a": 1, "reserve b": 1, "reserve c": 1, "charge total": 1}


def test_a_loop_that_is_taken_out_stops_the_run_before_the_next_loop_acts(stage: Stage, style: Style) -> None:
    first(stage, style, lambda release: looped_items(release, "ab"))
    with pytest.raises(NeedsReview, match=r"charge\[a\] is new before reserve\[a\], reserve\[b\]"):
        then(stage, style, lambda release: loop(release, "charge"))
    assert "charge a" not in stage.effects


def test_a_step_taken_out_of_one_branch_stops_the_run_before_that_branch_acts(stage: Stage) -> None:
    def branches(release: Release, names: list[str]) -> Any:
        reserve, charge, mail = (release.step(name) for name in ("reserve", "charge", "mail"))
        steps = {"reserve": reserve, "charge": charge}
        yield release.app.gather(lambda: [steps[name]("a") for name in names], lambda: mail("b"))

    style = Style("def")
    first(stage, style, lambda release: branches(release, ["reserve"]))
    with pytest.raises(NeedsReview, match="charge is new before reserve"):
        then(stage, style, lambda release: branches(release, ["charge"]))
    assert "charge a" not in stage.effects


def test_a_step_that_another_branch_has_still_to_call_is_not_missed(stage: Stage) -> None:
    style = Style("def")

    def branches(release: Release, *, more: bool) -> Any:
        reserve, charge, mail = (release.step(name) for name in ("reserve", "charge", "mail"))
        one = [reserve, charge] if more else [reserve]
        yield release.app.gather(lambda: [step("a") for step in one], lambda: mail("b"), limit=1)

    first(stage, style, lambda release: branches(release, more=False))
    assert then(stage, style, lambda release: branches(release, more=True)) == "done"
    assert stage.effects == {"reserve a": 1, "charge a": 1, "mail b": 1}


# -- in another order ------------------------------------------------------------------------------


def two_each(release: Release, xs: str, until: str) -> Any:
    """Two steps for every item; in the first release it stops before one of them."""
    reserve, charge = release.step("reserve", id="{x}"), release.step("charge", id="{x}")
    for x in xs:
        for name, step in (("reserve", reserve), ("charge", charge)):
            if f"{name} {x}" == until:
                return
            yield step(x)


@pytest.mark.parametrize("until", ["charge a", "reserve b", "charge b", "reserve c", "charge c", ""])
@pytest.mark.parametrize("xs", ["abc", "acb", "bac", "bca", "cab", "cba"])
def test_a_loop_may_go_in_another_order_wherever_it_was_left(stage: Stage, style: Style, xs: str, until: str) -> None:
    first(stage, style, lambda release: two_each(release, "abc", until))

    def again(release: Release) -> Any:
        yield from two_each(release, xs, "")
        yield release.step("ship")("all")

    assert then(stage, style, again) == "done"
    assert set(stage.effects.values()) == {1}
    assert len(stage.effects) == 7


@pytest.mark.parametrize("xs", ["ab", "ba"])
def test_so_may_a_gathering_of_calls_with_ids(stage: Stage, style: Style, xs: str) -> None:
    first(stage, style, lambda release: gathered_items(release, "a"))
    assert then(stage, style, lambda release: gathered_items(release, xs)) == "done"
    assert stage.effects == {"reserve a": 1, "reserve b": 1}
