"""Short words for tests about waits."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.unit.flows.stage import Stage, Style
from twiceproof import App, Waiting
from twiceproof.claims.claim import address_of
from twiceproof.flows.workers.due_work import resume_run
from twiceproof.operations import await_, block
from twiceproof.records import Address

URL = "https://hooks.example.com"


def process(stage: Stage, at: int | None = None, *, landed: bool = False) -> App:
    app = stage.process(at, landed=landed)
    app.runtime.url = URL
    return app


def waiter(app: App, name: str = "paid", style: Style | None = None, **options: Any) -> Any:
    """A flow that waits, and returns what came."""

    def steps(order: int) -> Any:
        return (yield app.wait_for(name, **options))

    return (style or Style("def")).flow(app, steps)


def park(flow: Any, order: int = 1) -> Any:
    """Call it, see it park, and give back the handle."""
    with pytest.raises(Waiting) as caught:
        flow(order)
    return caught.value.handle


def deliver(app: App, payload: Any, name: str = "paid", order: int = 1) -> Any:
    return app.deliver_to(flow="sync", key=f"order:{order}", name=name, payload=payload)


def work(app: App) -> int:
    """What a worker does: everything that is due, once."""
    flow = next(iter(app.flows.values()))
    due = app.store.due("run", queues=flow.queues, hide=0.0).block()
    for record in due.records:
        if flow.drive is await_:
            asyncio.run(await_(resume_run(flow, record)))
        else:
            block(resume_run(flow, record))
    return len(due.records)


def arrival(stage: Stage, name: str = "wait:paid", order: int = 1) -> Any:
    space = address_of("default", "sync", f"order:{order}").space
    return stage.engine.fetch([Address(space, "arrival", name)])[0].record


def token_of(url: str) -> str:
    return url.rsplit("/", 1)[1]
