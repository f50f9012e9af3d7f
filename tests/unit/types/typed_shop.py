"""A shop for type checkers: what each call returns, in `def` and in `async def` flows. Read by them, never run."""

from dataclasses import dataclass
from typing import Any, assert_type

from twiceproof import App, Decision, ItemDone, ItemFailed, Resource
from twiceproof.claims.claim import TakeOutcome
from twiceproof.flows.handle import AsyncRunHandle, RunHandle
from twiceproof.outbox.sending import SentMessage

app = App("memory://")


@dataclass
class Line:
    sku: str


@dataclass
class Payment:
    amount: int


def start(url: str) -> None: ...


async def astart(url: str) -> None: ...


@app.step(repeat="safe")
def reserve(line: Line) -> int:
    return 1


@app.step(repeat="safe")
def label(line: Line) -> str:
    return line.sku


@app.step(repeat="safe")
async def areserve(line: Line) -> int:
    return 1


@app.step(repeat="safe")
async def alabel(line: Line) -> str:
    return line.sku


@app.step(repeat="safe")
def ship(line: Line, carrier: str, *, express: bool = False) -> str:
    return carrier


@app.flow(key="order:{order_id}")
def sync(order_id: int, lines: list[Line]) -> str:
    assert_type(reserve(lines[0]), int)
    app.sleep("3d")
    decision: Decision = app.approve("pay", show=order_id)
    assert_type(decision.approved, bool)
    url: str = app.callback_url("paid")
    counts: list[int] = app.each(lines, reserve, key="{item.sku}")
    collected: list[ItemDone[int] | ItemFailed] = app.each(lines, reserve, key="{item.sku}", on_failure="collect")
    carriers: list[str] = app.each(lines, ship, "dhl", key="{item.sku}", express=True)
    count, name = app.gather(lambda: reserve(lines[0]), lambda: label(lines[0]))
    assert_type(count, int)
    assert_type(name, str)
    assert_type(app.gather(*[lambda: 1]), list[int])
    assert_type(app.wait_for("any"), Any)
    assert_type(app.wait_for("paid", type=Payment), Payment)
    assert_type(app.wait_for("paid", type=Payment, timeout="7d"), Payment)
    assert_type(app.wait_for("paid", type=Payment, timeout="7d", default=None), Payment | None)
    assert_type(app.wait_for("paid", type=Payment, timeout="7d", default=Payment(0)), Payment)
    assert_type(app.wait_for("paid", type=list[Payment]), list[Payment])
    assert_type(app.wait_for("paid", timeout="7d", default=None), Any)
    assert_type(app.remote(start=start, callback="job"), Any)
    assert_type(app.remote(start=start, callback="job", type=Payment, timeout="2h"), Payment)
    sent: SentMessage = app.send("orders.paid", {"id": order_id})
    assert_type(sent.key, str)
    picture: Resource = app.resource(b"PNG")
    content: bytes = picture.read()
    text: str = picture.text()
    reserve(app.send("orders.paid", text))  # wrong: a message is no line
    reserve(picture.read())  # wrong: bytes are no line
    label(app.wait_for("paid", type=Payment))  # wrong: a payment is no line
    label(app.wait_for("line", type=Line))
    return f"{url} {counts} {collected} {carriers} {content!r}"


@app.flow(key="order:{order_id}")
async def async_(order_id: int, lines: list[Line]) -> str:
    assert_type(await areserve(lines[0]), int)
    await app.sleep("3d")
    assert_type(await app.approve("pay", show=order_id), Decision)
    assert_type(await app.callback_url("paid"), str)
    assert_type(await app.each(lines, areserve, key="{item.sku}"), list[int])
    assert_type(await app.each(lines, reserve, key="{item.sku}"), list[int])
    collected = await app.each(lines, areserve, key="{item.sku}", on_failure="collect")
    assert_type(collected, list[ItemDone[int] | ItemFailed])
    count, name = await app.gather(areserve(lines[0]), alabel(lines[0]))
    assert_type(count, int)
    assert_type(name, str)
    assert_type(await app.gather(*[areserve(line) for line in lines]), list[int])
    assert_type(await app.wait_for("any"), Any)
    assert_type(await app.send("orders.paid", {"id": order_id}), SentMessage)
    picture = await app.resource(b"PNG")
    assert_type(picture, Resource)
    assert_type(await picture.read(), bytes)
    assert_type(await picture.text(), str)
    assert_type(await app.waiting_for("paid", type=Payment), Payment)
    assert_type(await app.waiting_for("paid", type=Payment, timeout="7d", default=None), Payment | None)
    assert_type(await app.waiting_for("paid", type=Payment, timeout="7d", default=Payment(0)), Payment)
    assert_type(await app.remote(start=astart, callback="job", type=Payment), Payment)
    assert_type(await app.remote(start=start, callback="job"), Any)
    await alabel(await app.waiting_for("line", type=Line))
    await alabel(app.waiting_for("line", type=Line))  # wrong: not awaited
    handle = await async_.start(order_id, lines)
    assert_type(await handle.result(), str)
    return "done"


def outside(lines: list[Line]) -> None:
    assert_type(sync(1, lines), str)
    assert_type(sync.retry(1, lines), str)
    handle = sync.start(1, lines)
    assert_type(handle, RunHandle[str])
    assert_type(handle.state, str)
    assert_type(handle.result(timeout=5), str)
    assert_type(handle.cancel("ann"), str)
    assert_type(sync.key(1, lines), str)
    assert_type(sync.start(1, lines, delay="10m"), RunHandle[str])
    assert_type([each.result() for each in sync.start_many([(1, lines)])], list[str])
    sync.start("one", lines)  # wrong: order_id
    sync("one", lines)  # wrong: order_id
    app.each(["A1"], reserve, key="{item}")  # wrong: no lines


async def async_outside(lines: list[Line]) -> None:
    assert_type(await async_(1, lines), str)
    assert_type(await async_.retry(1, lines), str)
    handle = await async_.start(1, lines)
    assert_type(handle, AsyncRunHandle[str])
    assert_type(await handle.state, str)
    assert_type(await handle.result(timeout=5), str)
    assert_type(await handle.cancel("ann"), str)
    assert_type(await async_.start(1, lines, delay="10m"), AsyncRunHandle[str])
    assert_type([await each.result() for each in await async_.start_many([(1, lines)])], list[str])
    await async_.start("one", lines)  # wrong: order_id
    async_.start(1, lines).result()  # wrong: not awaited
    attached = await app.attach(flow="sync", key="order:1")
    assert_type(await attached.state, str)


@app.once(key="welcome:{customer}")
def welcome(customer: str) -> int:
    return 1


@app.once(key="welcome:{customer}")
async def awelcome(customer: str) -> int:
    return 1


async def guarded() -> None:
    assert_type(welcome("ann"), int)
    assert_type(welcome.look("ann"), TakeOutcome | None)
    assert_type(welcome.retry("ann"), int)
    assert_type(await awelcome("ann"), int)
    assert_type(await awelcome.look("ann"), TakeOutcome | None)
    assert_type(await awelcome.retry("ann"), int)
    welcome(1)  # wrong: customer
