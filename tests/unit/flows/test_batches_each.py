"""`app.each`: state per item. What fails, waits or is in doubt holds up nothing, and only it is tried again."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.unit.flows.resuming import resume
from tests.unit.flows.stage import Died, Stage, Style
from twiceproof import App, BatchFailed, ItemDone, ItemFailed, Misuse, NeedsReview, NotDone, Retry, Waiting
from twiceproof.flows.parallel import each as each_module

ONCE = Retry(attempts=1)
LINES = [{"sku": sku} for sku in "abcdef"]


class Shop:
    """A flow over lines, with a step that can be told how to behave for each."""

    def __init__(self, stage: Stage, app: App, **options: Any) -> None:
        self.trouble: dict[str, list[BaseException]] = {}
        each = {key: options.pop(key) for key in ("concurrency", "on_failure") if key in options}

        @app.step(**{"repeat": "safe", "retry": ONCE, **options})
        def reserve(line: dict[str, str]) -> str:
            sku = line["sku"]
            stage.do(sku)
            if self.trouble.get(sku):
                raise self.trouble[sku].pop(0)
            return sku.upper()

        @app.flow(key="order:{order}")
        def sync(order: int, lines: list[dict[str, str]]) -> Any:
            return app.each(lines, reserve, key="{item[sku]}", **each)

        self.flow = sync


# -- results ---------------------------------------------------------------------------------------


def test_results_come_in_the_order_of_the_items(stage: Stage) -> None:
    shop = Shop(stage, stage.process())
    assert shop.flow(1, LINES) == list("ABCDEF")
    assert shop.flow(1, LINES) == list("ABCDEF")
    assert stage.effects == Counter("abcdef")
    assert set(stage.entries("sync", "order:1")) == {f"reserve[{sku}]" for sku in "abcdef"}


def test_awaited_items_come_in_order_too(stage: Stage) -> None:
    app = stage.process()

    @app.step(repeat="safe")
    async def reserve(line: dict[str, str]) -> str:
        await asyncio.sleep(0)
        return line["sku"].upper()

    @app.flow(key="order:{order}")
    async def sync(order: int, lines: list[dict[str, str]]) -> list[str]:
        return await app.each(lines, reserve, key=lambda item: item["sku"], concurrency=3)

    assert asyncio.run(sync(1, LINES)) == list("ABCDEF")


def test_no_more_than_the_concurrency_are_at_work(stage: Stage) -> None:
    app, at_work, most, mutex = stage.process(), 0, 0, threading.Lock()

    @app.step(repeat="safe")
    def work(n: int) -> None:
        nonlocal at_work, most
        with mutex:
            at_work += 1
            most = max(most, at_work)
        threading.Event().wait(0.002)
        with mutex:
            at_work -= 1

    @app.flow(key="order:{order}")
    def sync(order: int) -> None:
        app.each(range(40), work, key="{item}", concurrency=3)

    sync(1)
    assert most == 3


def test_a_step_with_an_id_needs_no_key(stage: Stage) -> None:
    app = stage.process()

    @app.step(repeat="safe", id="{n}")
    def double(n: int) -> int:
        return 2 * n

    @app.flow(key="order:{order}")
    def sync(order: int) -> list[int]:
        return app.each([1, 2], double)

    assert sync(1) == [2, 4]


# -- what is refused -------------------------------------------------------------------------------


def test_two_items_of_one_key_are_refused_before_anything_is_done(stage: Stage) -> None:
    shop = Shop(stage, stage.process())
    with pytest.raises(Misuse, match="Items 1 and 3"):
        shop.flow(1, [{"sku": "a"}, {"sku": "b"}, {"sku": "a"}])
    assert stage.effects == {}


def test_an_item_without_a_key_is_refused_before_anything_is_done(stage: Stage) -> None:
    shop = Shop(stage, stage.process())
    with pytest.raises(Misuse):
        shop.flow(1, [{"sku": "a"}, {}])
    assert stage.effects == {}


@pytest.mark.parametrize("options", [{"concurrency": 0}, {"on_failure": "ignore"}])
def test_settings_that_mean_nothing_are_refused(stage: Stage, options: dict[str, Any]) -> None:
    with pytest.raises(Misuse):
        Shop(stage, stage.process(), **options).flow(1, LINES)
    assert stage.effects == {}


def test_a_plain_function_is_refused(stage: Stage) -> None:
    app = stage.process()

    @app.flow(key="order:{order}")
    def sync(order: int) -> None:
        app.each([1], print, key="{item}")

    with pytest.raises(Misuse, match=r"@app\.step"):
        sync(1)


def test_without_a_key_or_an_id_items_cannot_be_found_again(stage: Stage) -> None:
    app = stage.process()
    step = app.step(repeat="safe")(lambda_step)

    @app.flow(key="order:{order}")
    def sync(order: int) -> None:
        app.each([1], step)

    with pytest.raises(Misuse, match="key="):
        sync(1)


def lambda_step(n: int) -> int:
    return n


# -- failures --------------------------------------------------------------------------------------


def test_failures_are_raised_when_all_the_others_are_done(stage: Stage) -> None:
    shop = Shop(stage, stage.process())
    shop.trouble = {"b": [NotDone("sold out")], "e": [NotDone("sold out")]}
    with pytest.raises(BatchFailed, match=r"2 of 6 items of reserve failed") as failed:
        shop.flow(1, LINES)
    assert [key for key, _ in failed.value.failed] == ["b", "e"]
    assert failed.value.failed[0][1].message == "sold out"
    assert failed.value.done == 4
    assert stage.effects == Counter("abcdef")


def test_a_retry_tries_only_what_failed(stage: Stage) -> None:
    shop = Shop(stage, stage.process())
    shop.trouble = {"b": [NotDone("sold out")], "e": [NotDone("sold out")]}
    with pytest.raises(BatchFailed):
        shop.flow(1, LINES)
    assert shop.flow.retry(1, LINES) == list("ABCDEF")
    assert stage.effects == Counter("abbcdeef")


def test_failures_can_be_collected_as_values(stage: Stage) -> None:
    app = stage.process()
    found: list[Any] = []

    @app.step(repeat="safe", retry=ONCE)
    def reserve(sku: str) -> str:
        if sku == "b":
            raise NotDone("sold out")
        return sku.upper()

    @app.flow(key="order:{order}")
    def sync(order: int) -> list[str]:
        found[:] = app.each("abc", reserve, key="{item}", on_failure="collect")
        return [outcome.key for outcome in found if isinstance(outcome, ItemFailed)]

    assert sync(1) == ["b"]
    assert found[0] == ItemDone("a", "A")
    assert found[1].fault.message == "sold out"
    assert found[2] == ItemDone("c", "C")


def test_an_item_that_backs_off_does_not_hold_up_the_others(stage: Stage) -> None:
    app = stage.process()
    shop = Shop(stage, app, retry=Retry(first=3_600.0, most=3_600.0))
    shop.trouble = {"a": [NotDone("later")]}
    with pytest.raises(Waiting):
        shop.flow(1, LINES)
    assert stage.effects == Counter("abcdef")
    stage.clock.advance(3_600)
    assert resume(app) == 1
    assert shop.flow(1, LINES) == list("ABCDEF")
    assert stage.effects == Counter("aabcdef")


def test_an_item_in_doubt_does_not_hold_up_the_others(stage: Stage) -> None:
    shop = Shop(stage, stage.process(), repeat="never")
    shop.trouble = {"a": [TimeoutError("no answer")]}
    with pytest.raises(NeedsReview, match=r"reserve\[a\]"):
        shop.flow(1, LINES)
    assert stage.effects == Counter("abcdef")
    states = Counter(entry.state for entry in stage.entries("sync", "order:1").values())
    assert states == {"done": 5, "unknown": 1}


def test_what_backs_off_for_a_moment_goes_on_before_a_person_is_asked(stage: Stage) -> None:
    """Otherwise one unknown outcome would put off the retries of all the others until it is settled."""
    app = stage.process()
    shop = Shop(stage, app, repeat="never", retry=Retry(first=60.0, most=60.0))
    shop.trouble = {"a": [TimeoutError("no answer")], "b": [NotDone("later")]}
    with pytest.raises(Waiting):
        shop.flow(1, LINES)
    stage.clock.advance(60)
    resume(app)
    assert stage.effects == Counter("abbcdef")
    assert stage.record("sync", "order:1").state == "review"


# -- crashes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("repeat", ["safe", "keyed"])
@pytest.mark.parametrize("landed", [False, True])
def test_killed_at_every_commit_everything_is_done_in_the_end(repeat: Any, landed: bool) -> None:
    for at in range(1, 30):
        stage = Stage()
        app = stage.process(at, landed=landed)
        try:
            if Shop(stage, app, repeat=repeat, concurrency=2, retry=Retry()).flow(1, LINES):
                break
        except Died:
            stage.lapse()
            again = Shop(stage, stage.process(), repeat=repeat, concurrency=2, retry=Retry())
            assert again.flow(1, LINES) == list("ABCDEF")
            assert set(stage.effects) == set("abcdef")
        finally:
            stage.close()
    assert at > 2


@pytest.mark.parametrize("landed", [False, True])
def test_killed_at_every_commit_an_unrepeatable_item_is_done_at_most_once(landed: bool) -> None:
    for at in range(1, 30):
        stage = Stage()
        try:
            if Shop(stage, stage.process(at, landed=landed), repeat="never", concurrency=2).flow(1, LINES):
                break
        except Died:
            stage.lapse()
            try:
                Shop(stage, stage.process(), repeat="never", concurrency=2).flow(1, LINES)
            except NeedsReview:
                assert "unknown" in {entry.state for entry in stage.entries("sync", "order:1").values()}
            assert max(stage.effects.values()) == 1
        finally:
            stage.close()
    assert at > 2


def test_no_item_acts_before_what_came_before_the_batch_is_acknowledged(stage: Stage) -> None:
    app = stage.process()
    app.runtime.flusher.stop()

    @app.step(repeat="safe")
    def before(order: int) -> None: ...

    @app.step(repeat="safe", retry=ONCE)
    def item(n: int) -> str:
        return stage.entries("sync", "order:1")["before"].state

    @app.flow(key="order:{order}")
    def sync(order: int) -> list[str]:
        before(order)
        return app.each([1, 2], item, key="{item}")

    assert sync(1) == ["done", "done"]


# -- many ------------------------------------------------------------------------------------------


def test_ten_thousand_items_go_in_few_commits_and_are_read_back_in_few_scans(tmp_path: Path) -> None:
    with App(f"sqlite:///{tmp_path}/many.db") as app:
        commits, scans = counted(app)

        @app.step(repeat="safe")
        def double(n: int) -> int:
            if n == 9_999 and len(stopped) == 0:
                stopped.append(n)
                raise KeyboardInterrupt
            return 2 * n

        @app.flow(key="batch:{n}")
        def many(n: int) -> int:
            return sum(app.each(range(n), double, key="{item}"))

        stopped: list[int] = []
        with pytest.raises(KeyboardInterrupt):
            many(10_000)
        assert commits() < 1_500
        assert many(10_000) == 99_990_000
        assert scans() <= 12
        assert app.progress(many.flow.handle("batch:10000").id) == {"double": {"done": 10_000}}


def test_many_items_with_intents_share_their_commits(tmp_path: Path) -> None:
    """While one branch writes, the others' starts and ends gather for the next write."""
    with App(f"sqlite:///{tmp_path}/many.db") as app:
        commits, _ = counted(app)

        @app.step
        def send(n: int) -> int:
            return n

        @app.flow(key="batch:{n}")
        def many(n: int) -> int:
            return len(app.each(range(n), send, key="{item}", concurrency=16))

        assert many(1_000) == 1_000
        assert commits() < 500


def counted(app: App) -> tuple[Any, Any]:
    """How many commits and scans reach the database."""
    counts: Counter[str] = Counter()
    engine: Any = app.store.engine  # type: ignore[attr-defined]
    scan, commit = engine.scan, app.store._writes._work  # type: ignore[attr-defined]

    def counting(name: str, call: Any) -> Any:
        def counted_call(*args: Any, **kwargs: Any) -> Any:
            counts[name] += 1
            return call(*args, **kwargs)

        return counted_call

    engine.scan = counting("scan", scan)
    app.store._writes._work = counting("commit", commit)  # type: ignore[attr-defined]
    return lambda: counts["commit"], lambda: counts["scan"]


def test_a_batch_that_takes_its_time_says_how_far_it_is(
    stage: Stage, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(each_module, "REPORT_EVERY", 0.0)
    with caplog.at_level(logging.INFO, "twiceproof"):
        Shop(stage, stage.process(), concurrency=1).flow(1, LINES)
    assert "3 of 6 items of reserve" in caplog.text


def test_a_batch_in_both_styles_leaves_the_same_ledger(stage: Stage, style: Style) -> None:
    app = stage.process()

    def double(n: int) -> int:
        return 2 * n

    step = style.step(app, double, repeat="safe")
    flow = style.flow(app, lambda order: (yield app.each([1, 2], step, key="{item}")))
    flow(1)
    entries = stage.entries("sync", "order:1")
    assert {name: entry.state for name, entry in entries.items()} == {"double[1]": "done", "double[2]": "done"}


# -- beside other gatherings ---------------------------------------------------------------------


def drawing(stage: Stage, app: App, items: list[int], seen: list[Any]) -> Any:
    """A batch, then numbers drawn in the branches of two gatherings, then a wait."""

    @app.step(repeat="safe")
    def reserve(item: int) -> int:
        stage.do(f"reserve {item}")
        return item

    @app.flow(key="order:{order}", name="sync")
    def sync(order: int) -> None:
        app.each(items, reserve, key="{item}")
        seen.append([app.gather(app.random, app.random, limit=1) for _ in range(2)])
        app.sleep("1h")

    return sync


@pytest.mark.parametrize("items", [[1, 2, 3], []], ids=["some", "none"])
def test_what_is_drawn_beside_others_after_a_batch_is_the_same_in_a_replay(stage: Stage, items: list[int]) -> None:
    """A batch that is answered from the ledger counts as one all the same: else each branch is given another's."""
    app, seen = stage.process(), list[Any]()
    sync = drawing(stage, app, items, seen)
    with pytest.raises(Waiting):
        sync(1)
    stage.clock.advance(3_700)
    sync(1)
    assert stage.record("sync", "order:1").state == "done"
    assert len(seen) == 2
    assert seen[0] == seen[1]
    assert len({number for pair in seen[0] for number in pair}) == 4


@pytest.mark.parametrize("undo", ["of the items", "of a step before", "none"])
def test_a_batch_that_failed_says_what_can_be_done_about_it(stage: Stage, undo: str) -> None:
    """What is undone cannot be retried: then it is started as something new."""
    app = stage.process()

    def take_back(result: int) -> None: ...

    @app.step(repeat="safe", undo=take_back if undo == "of a step before" else None)
    def open_box() -> int:
        return 1

    @app.step(repeat="safe", retry=ONCE, undo=take_back if undo == "of the items" else None)
    def put(item: int) -> int:
        if item == 2:
            raise NotDone("no room")
        return item

    @app.flow(key="box:{n}")
    def pack(n: int) -> list[int]:
        open_box()
        return app.each([1, 2, 3], put, key="{item}")

    with pytest.raises(BatchFailed) as failed:
        pack(1)
    if undo == "none":
        assert ".retry(…): only what failed is tried again" in str(failed.value)
        with pytest.raises(BatchFailed):
            pack.retry(1)
    else:
        assert "undone unless the flow catches this" in str(failed.value)
        assert f"runs fork {failed.value.run} --key KEY" in str(failed.value)
        with pytest.raises(Misuse, match="was undone"):
            pack.retry(1)


def test_further_arguments_are_given_to_the_step_of_every_item(stage: Stage) -> None:
    app = stage.process()

    @app.step(repeat="safe")
    def ship(item: str, carrier: str, express: bool = False) -> str:
        return f"{item} by {carrier}, {express}"

    @app.flow(key="order:{order}")
    def sync(order: int) -> list[str]:
        return app.each(["a", "b"], ship, "dhl", key="{item}", express=True)

    assert sync(1) == ["a by dhl, True", "b by dhl, True"]
