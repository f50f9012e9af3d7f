from __future__ import annotations
import asyncio, threading
from typing import Any
import pytest
from twiceproof import App, NeedsReview, Waiting, NotDone, keyed, check
from twiceproof.drive import block
from twiceproof.effects.look import Absent
from .stage import Died, Stage
from .waits import work, deliver
from .resuming import resume

def test_first_keyed_step_window(stage: Stage) -> None:
    def shop(app, die=False):
        @app.step(repeat="keyed")
        def charge(order): 
            stage.do("charge")
            if die: app.engine.dead = True
        @app.flow(key="order:{order}", name="sync")
        def sync(order: int): charge(order)
        return sync
    with pytest.raises(Died):
        shop(stage.process(), True)(1)
    stage.clock.advance(3*86400)
    try: shop(stage.process())(1)
    except NeedsReview: pass
    assert stage.effects["charge"] == 1

def test_interrupted_keyed_window(stage: Stage) -> None:
    def shop(app, die=False):
        @app.step(repeat="keyed")
        def charge(order): 
            stage.do("charge")
            if die: raise KeyboardInterrupt
        @app.flow(key="order:{order}", name="sync")
        def sync(order: int): charge(order)
        return sync
    with pytest.raises(KeyboardInterrupt):
        shop(stage.process(), True)(1)
    stage.clock.advance(3*86400)
    try: shop(stage.process())(1)
    except NeedsReview: pass
    assert stage.effects["charge"] == 1

def test_retry_keyed_window_after_outage(stage: Stage) -> None:
    from twiceproof import Retry
    def shop(app):
        @app.step(repeat="keyed", retry=Retry(first="1h", most="1h"))
        def charge(order): 
            stage.do("charge")
            raise TimeoutError
        @app.flow(key="order:{order}", name="sync")
        def sync(order: int): charge(order)
        return sync
    with pytest.raises(Waiting):
        shop(stage.process())(1)
    stage.clock.advance(3*86400)
    try: shop(stage.process())(1)
    except (NeedsReview, Waiting): pass
    assert stage.effects["charge"] == 1

def test_settling_after_long_attempt(stage: Stage) -> None:
    app = stage.process()
    asked = []
    def look(order):
        asked.append(stage.clock.now()); return Absent()
    failed = []
    @app.step(repeat=check(look, settling="60s"))
    def charge(order):
        stage.do("charge")
        if not failed:
            stage.clock.advance(100); failed.append(stage.clock.now()); raise TimeoutError
    @app.flow(key="order:{order}", name="sync", lease="10m")
    def sync(order: int): charge(order)
    try: sync(1)
    except Waiting: pass
    assert not asked, asked[0] - failed[0]

def test_cancel_is_not_lost_when_it_lies_down(stage: Stage) -> None:
    app = stage.process()
    @app.step(repeat="safe")
    def prepare(order):
        stage.do("prepare")
        assert app.attach(flow="sync", key="order:1").cancel("ann") == "held"
    @app.flow(key="order:{order}", name="sync")
    def sync(order: int):
        prepare(order); app.wait_for("paid"); stage.do("after")
    with pytest.raises(BaseException) as e: sync(1)
    print(repr(e.value))
    assert stage.record("sync", "order:1").state == "failed"

def test_cancel_with_unknown_keyed(stage: Stage) -> None:
    from twiceproof import Retry
    app = stage.process()
    @app.step(repeat="safe")
    def unreserve(order): stage.do("unreserve")
    @app.step(repeat="safe", undo=unreserve)
    def reserve(order): stage.do("reserve")
    @app.step(repeat="keyed", retry=Retry(first="1h", most="1h"))
    def charge(order): raise TimeoutError
    @app.flow(key="order:{order}", name="sync")
    def sync(order: int): reserve(order); charge(order)
    with pytest.raises(Waiting): sync(1)
    app.attach(flow="sync", key="order:1").cancel("ann")
    work(app)
    assert stage.effects["unreserve"] == 0
    assert stage.record("sync", "order:1").state == "review"

def test_cancel_with_crashed_keyed(stage: Stage) -> None:
    def shop(app, die=False):
        @app.step(repeat="safe")
        def unreserve(order): stage.do("unreserve")
        @app.step(repeat="safe", undo=unreserve)
        def reserve(order): stage.do("reserve")
        @app.step(repeat="keyed")
        def charge(order):
            stage.do("charge")
            if die: app.engine.dead = True
        @app.flow(key="order:{order}", name="sync")
        def sync(order: int): reserve(order); charge(order)
        return sync
    with pytest.raises(Died): shop(stage.process(), True)(1)
    stage.lapse()
    app = stage.process(); shop(app)
    app.attach(flow="sync", key="order:1").cancel("ann")
    work(app)
    assert stage.effects["unreserve"] == 0
    assert stage.record("sync", "order:1").state == "review"

def test_undo_that_fails(stage: Stage) -> None:
    app = stage.process()
    @app.step(repeat="never")
    def unreserve(order): stage.do("unreserve"); raise ValueError("no")
    @app.step(repeat="safe", undo=unreserve)
    def reserve(order): stage.do("reserve")
    @app.flow(key="order:{order}", name="sync")
    def sync(order: int): reserve(order); raise KeyError("x")
    with pytest.raises(BaseException) as e: sync(1)
    print(repr(e.value))
    assert stage.record("sync", "order:1").state in ("review", "failed")

def test_retry_of_cancelled(stage: Stage) -> None:
    app = stage.process()
    @app.flow(key="order:{order}", name="sync")
    def sync(order: int): return "ok"
    sync.start(1).cancel("ann")
    assert sync.retry(1) == "ok"

def test_slot_leak(stage: Stage) -> None:
    app = stage.process()
    @app.flow(key="order:{order}", name="sync", limit=1, limit_per={"c:{order}": 1})
    def sync(order: int): return "ok"
    # second take fails
    app.engine.at = app.engine.commits + 2
    with pytest.raises(Died): sync(1)
    assert not app._heartbeat._holds

def test_spilled_limit_per(stage: Stage) -> None:
    app = stage.process()
    @app.flow(key="order:{order[id]}", name="sync", limit_per={"c:{order[id]}": 1})
    def sync(order: dict[str, Any]): return "ok"
    sync.start({"id": 1, "x": "y"*400_000})
    work(app)
    assert stage.record("sync", "order:1").state == "done"

def test_mixed_gather_deadlock(stage: Stage) -> None:
    app = stage.process()
    @app.step(repeat="never", id="{n}")
    async def one(n: int): return n
    @app.step(repeat="never", id="{n}")
    def two(n: int): return n
    @app.flow(key="order:{order}", name="sync")
    async def sync(order: int):
        async def branch(n): return two(n)
        return await app.gather(*[one(n) for n in range(5)], *[branch(n) for n in range(5)])
    t = threading.Thread(target=lambda: asyncio.run(sync(1)), daemon=True); t.start(); t.join(5)
    assert not t.is_alive()

def test_evidence_piece_conflict(stage: Stage) -> None:
    pass

def test_hot_loop_of_other_version(stage: Stage) -> None:
    old = stage.process()
    @old.flow(key="parcel:{order}", version="2")
    def ship(order: int): return 1
    ship.start(1)
    app = stage.process()
    @app.flow(key="order:{order}", name="sync")
    def sync(order: int): return ship1(order)
    @app.flow(key="parcel:{order}", name="ship")
    def ship1(order: int): return 1
    stage.clock.advance(10)
    with pytest.raises(Waiting): sync(1)
    r = stage.record("sync", "order:1")
    assert r.due_at - stage.clock.now() >= 1
