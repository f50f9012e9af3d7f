"""Messages: sending beside bare INSERTs, relays beside textbook ones, consumers beside INSERT and acknowledge."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

from tests.servers.rabbitmq import RabbitServer

from twiceproof import App
from twiceproof.brokers.base import Confirmed, OutgoingMessage, Publication
from twiceproof.brokers.open import open_broker
from twiceproof.effects.sql_databases import connect
from twiceproof.operations import block
from twiceproof.outbox.message import queue_of_target
from twiceproof.outbox.routing import Routing
from twiceproof.outbox.sending import MessageOrigin, Sending, make_messages, write_unordered

from ..callers import ONE, One, Threads
from ..findings import Findings, Line, rows_beside
from ..goals import line
from ..plan import Plan
from ..progress import Progress
from ..rounds import Contender, Slots, compete
from ..series import Ratio, ratio, spread
from ..sites import Site
from ..waiting import fill_undelivered

__all__ = ["BATCH", "WINDOW", "Ours", "Prepared", "measure_brokers", "measure_messages", "race"]

NOTE = "x" * 900
BODY = {"order": 17, "note": NOTE}  # about a kilobyte
AT_ONCE = 64  # threads, each with a connection of its own
BATCH = 1_000  # messages that a relay finds
WINDOW = 500  # messages that are published together, and not confirmed yet


class Everything:
    """A target that takes all at once."""

    def publish(self, messages: Sequence[OutgoingMessage], patience: float) -> list[Publication]:
        return [Confirmed("")] * len(messages)

    def close(self) -> None:
        """Nothing is open."""


class Prepared:
    """One caller whose acts need something prepared, which is not counted."""

    label = ONE
    count = 1

    def __init__(self, prepare: Callable[[], object], act: Callable[[], object]) -> None:
        self._prepare, self._act = prepare, act

    def time(self, each: int) -> float:
        taken = 0.0
        for _ in range(each):
            self._prepare()
            began = time.perf_counter()
            self._act()
            taken += time.perf_counter() - began
        return taken

    def close(self) -> None:
        """Nothing is open."""


class Ours:
    """An app on a site, with a target and a route to it."""

    def __init__(self, site: Site, stack: ExitStack, target: Any = None, place: str = "") -> None:
        self.url = site.fresh()
        self._begin(App(self.url), target or Everything(), place)
        stack.callback(self.app.close)

    def _begin(self, app: App, target: Any, place: str, **broker: Any) -> None:
        self.app = app
        app.broker("main", target, **broker)
        app.route("orders.*", to="main", place=place)
        self.keys = map(str, itertools.count())

    @classmethod
    def on(cls, app: App, **broker: Any) -> Ours:
        """On an app that is open already, with a target that takes all."""
        ours = cls.__new__(cls)
        ours._begin(app, Everything(), "", **broker)
        return ours

    def fill(self, count: int = BATCH) -> None:
        routing: Routing = self.app.routing
        for first in range(0, count, 500):
            made = [self._message(routing) for _ in range(min(500, count - first))]
            block(write_unordered(self.app.store, "default", made))

    def _message(self, routing: Routing) -> Any:
        key = next(self.keys)
        return make_messages(routing, Sending("orders.paid", BODY, key), key, MessageOrigin("bench"))[0]

    def relay(self) -> None:
        assert self.app.relay().run(until_idle=True) == BATCH


def measure_messages(site: Site, plan: Plan, progress: Progress) -> Findings:
    findings = Findings()
    for measure in (_transaction, _transactions_at_once, _flow, _relay, _next_due):
        with ExitStack() as stack:
            findings.add(measure(site, plan, progress, stack))
    return findings


def race(part: str, goal: str, pair: list[Contender], slots: Slots, progress: Progress) -> Findings:
    """The first is what the second is compared with."""
    with progress.heat(part, slots.rounds) as step:
        base, mine = compete(pair, slots, step)
    return Findings(rows_beside(part, base, [base, mine]), [line(goal, part, ratio(mine, base))])


# -- sending -------------------------------------------------------------------------------------


class Shop:
    """A user's connection: a transaction of two INSERTs, or of one and a message."""

    def __init__(self, ours: Ours, stack: ExitStack) -> None:
        self._ours = ours
        raw = stack.enter_context(connect(ours.url))
        self._handle, self._is_sqlite = raw.handle, raw.dialect == "sqlite"
        self._begin = "BEGIN IMMEDIATE" if self._is_sqlite else "BEGIN"
        mark = "?" if self._is_sqlite else "%s"
        self._insert = f"INSERT INTO bench_orders VALUES ({mark}, {mark})"
        if raw.dialect == "postgresql":
            self._handle.prepare_threshold = 5  # as psycopg's own connections have it

    def bare(self) -> None:
        self._handle.execute(self._begin)
        self._handle.execute(self._insert, (next(self._ours.keys), NOTE))
        self._handle.execute(self._insert, (next(self._ours.keys), NOTE))
        self._handle.execute("COMMIT")

    def with_message(self) -> None:
        key = next(self._ours.keys)
        self._handle.execute(self._begin)
        self._handle.execute(self._insert, (key, NOTE))
        with self._ours.app.outbox(self._handle) as outbox:
            outbox.send("orders.paid", BODY, key=key)
        self._handle.execute("COMMIT")


def _shops(site: Site, stack: ExitStack, count: int) -> list[Shop]:
    ours = Ours(site, stack)
    with connect(ours.url) as raw:
        raw.run("CREATE TABLE bench_orders (id VARCHAR(64) PRIMARY KEY, body TEXT)")
    return [Shop(ours, stack) for _ in range(count)]


def _transaction(site: Site, plan: Plan, progress: Progress, stack: ExitStack) -> Findings:
    (shop,) = _shops(site, stack, 1)
    pair = [
        Contender("two INSERTs", One(lambda _: shop.bare())),
        Contender("an INSERT and a message", One(lambda _: shop.with_message())),
    ]
    return race(
        f"{site.name}, a transaction", "message in a transaction", pair, Slots(plan.rounds, plan.slot), progress
    )


def _transactions_at_once(site: Site, plan: Plan, progress: Progress, stack: ExitStack) -> Findings:
    shops = _shops(site, stack, AT_ONCE)
    pair = [
        Contender("two INSERTs", Threads(AT_ONCE, lambda number: shops[number].bare())),
        Contender("an INSERT and a message", Threads(AT_ONCE, lambda number: shops[number].with_message())),
    ]
    part = f"{site.name}, transactions of {AT_ONCE} threads"
    return race(part, "message in a transaction", pair, Slots(plan.rounds, plan.slot), progress)


def _flow(site: Site, plan: Plan, progress: Progress, stack: ExitStack) -> Findings:
    ours = Ours(site, stack)
    app = ours.app

    @app.step(repeat="never")
    def work(number: int) -> int:
        return number

    def declare(name: str, *, sends: bool) -> Callable[[int], object]:
        @app.flow(key="{order}", name=name)
        def run(order: str) -> None:
            for number in range(5):
                work(number)
            if sends:
                app.send("orders.paid", BODY)

        return lambda _: run(next(ours.keys))

    pair = [
        Contender("a flow of 5 steps", One(declare("without", sends=False))),
        Contender("the same, sending", One(declare("sending", sends=True))),
    ]
    part = f"{site.name}, a flow of 5 steps"
    return race(part, "message in a flow", pair, Slots(plan.rounds, plan.slot), progress)


# -- relays --------------------------------------------------------------------------------------


def _relay(site: Site, plan: Plan, progress: Progress, stack: ExitStack) -> Findings:
    ours = Ours(site, stack)
    textbook = Textbook(site, stack)
    pair = [
        Contender("the textbook relay", Prepared(textbook.fill, textbook.relay), rows=BATCH, each=1),
        Contender("our relay", Prepared(ours.fill, ours.relay), rows=BATCH, each=1),
    ]
    part = f"{site.name}, {BATCH} messages to a target that takes all"
    return race(part, "relay", pair, Slots(plan.rounds, plan.slot), progress)


class Textbook:
    """SELECT … FOR UPDATE SKIP LOCKED, publish, DELETE, COMMIT, a hundred at a time."""

    def __init__(self, site: Site, stack: ExitStack) -> None:
        self._raw = stack.enter_context(connect(_touched(site.fresh())))
        self._raw.run("CREATE TABLE bench_outbox (id VARCHAR(64) PRIMARY KEY, body TEXT)")
        self._keys = map(str, itertools.count())
        self._sqlite = self._raw.dialect == "sqlite"
        self._broker = Everything()

    def fill(self) -> None:
        handle = self._raw.handle
        mark = "?" if self._sqlite else "%s"
        handle.execute("BEGIN")
        for _ in range(BATCH):
            handle.execute(f"INSERT INTO bench_outbox VALUES ({mark}, {mark})", (next(self._keys), "x" * 900))
        handle.execute("COMMIT")

    def relay(self) -> None:
        handle, locked = self._raw.handle, "" if self._sqlite else " FOR UPDATE SKIP LOCKED"
        while True:
            handle.execute("BEGIN IMMEDIATE" if self._sqlite else "BEGIN")
            rows = handle.execute(f"SELECT id, body FROM bench_outbox LIMIT 100{locked}").fetchall()
            self._broker.publish([OutgoingMessage("orders", key, body.encode()) for key, body in rows], 5.0)
            ids = [key for key, _ in rows]
            if self._sqlite:
                handle.executemany("DELETE FROM bench_outbox WHERE id = ?", [(key,) for key in ids])
            else:
                handle.execute("DELETE FROM bench_outbox WHERE id = ANY(%s)", (ids,))
            handle.execute("COMMIT")
            if not rows:
                return


def _touched(url: str) -> str:
    if url.startswith("sqlite"):
        from pathlib import Path

        Path(url.removeprefix("sqlite:///")).touch()
    return url


def _next_due(site: Site, plan: Plan, progress: Progress, stack: ExitStack) -> Findings:
    few, many = Ours(site, stack), Ours(site, stack)
    few.fill(1_000)
    many.fill(1)
    (first,) = many.app.store.scan("message").block().records
    fill_undelivered(site, many.url, first, plan.undelivered)
    queues = [queue_of_target("default", "main")]

    def look(ours: Ours) -> One:
        return One(lambda _: ours.app.store.due("message", queues=queues, limit=1, hide=0.001).block())

    pair = [Contender("1,000 undelivered", look(few)), Contender(f"{plan.undelivered:,} undelivered", look(many))]
    part = f"{site.name}, the next due message"
    with progress.heat(part, plan.rounds) as step:
        base, mine = compete(pair, Slots(plan.rounds, plan.slot), step)
    return Findings(rows_beside(part, base, [base, mine]), [line("message due", part, ratio(base, mine))])


# -- RabbitMQ ------------------------------------------------------------------------------------


def measure_brokers(site: Site, plan: Plan, progress: Progress) -> Findings:
    findings = Findings()
    with ExitStack() as stack:
        server = stack.enter_context(RabbitServer())
        for kind in ("classic", "quorum"):
            findings.add(_publishing(site, plan, progress, stack, server.url, kind))
        findings.add(_consuming(site, plan, progress, stack, server.url))
        findings.add(_latency(site, plan, stack))
    return findings


def _publishing(site: Site, plan: Plan, progress: Progress, stack: ExitStack, url: str, kind: str) -> Findings:
    queue = f"bench-{kind}"
    with Bare(url) as bare:
        bare.declare(queue, kind)
        broker = open_broker(url)
        stack.callback(broker.close)
        ours = Ours(site, stack, broker, place=f"/queues/{queue}")

        def fill() -> None:
            bare.purge(queue)
            ours.fill()

        theirs = Prepared(lambda: bare.purge(queue), lambda: bare.publish(queue))
        pair = [
            Contender("aio-pika, confirmed", theirs, rows=BATCH, each=1),
            Contender("our relay", Prepared(fill, ours.relay), rows=BATCH, each=1),
        ]
        part = f"{site.name}, {BATCH} messages to a {kind} queue of RabbitMQ"
        return race(part, "relay to a broker", pair, Slots(plan.rounds, plan.slot), progress)


def _consuming(site: Site, plan: Plan, progress: Progress, stack: ExitStack, url: str) -> Findings:
    with Bare(url) as bare:
        for queue in ("theirs", "ours"):
            bare.declare(queue)
        raw = stack.enter_context(connect(_touched(site.fresh())))
        raw.run("CREATE TABLE bench_inbox (id VARCHAR(64) PRIMARY KEY)")
        mark = "?" if raw.dialect == "sqlite" else "%s"
        insert = f"INSERT INTO bench_inbox VALUES ({mark}) ON CONFLICT DO NOTHING"
        app = Ours(site, stack).app
        app.broker("rabbit", url)

        @app.flow(key="{delivery[key]}", ignore=("delivery",), name="consumed")
        def consumed(body: Any, delivery: Any) -> None: ...

        app.consume("rabbit/ours", start=consumed, prefetch=WINDOW)

        def ours() -> None:
            readers = app.consuming()
            readers.start()
            while sum(readers.readers[0].outcomes.values()) < BATCH:
                time.sleep(0.001)
            readers.drain()
            readers.join(10)

        theirs = lambda: bare.consume("theirs", lambda key: raw.handle.execute(insert, (key,)))  # noqa: E731
        pair = [
            Contender("INSERT, then ack", Prepared(lambda: bare.publish("theirs"), theirs), rows=BATCH, each=1),
            Contender("consume and start", Prepared(lambda: bare.publish("ours"), ours), rows=BATCH, each=1),
        ]
        part = f"{site.name}, {BATCH} messages of RabbitMQ"
        return race(part, "consume", pair, Slots(plan.rounds, plan.slot), progress)


def _latency(site: Site, plan: Plan, stack: ExitStack) -> Findings:
    """From the commit of an idle app to the call of its target."""
    seen: dict[str, float] = {}

    class Noting(Everything):
        def publish(self, messages: Sequence[OutgoingMessage], patience: float) -> list[Publication]:
            seen.update({message.key: time.perf_counter() for message in messages})
            return super().publish(messages, patience)

    ours = Ours(site, stack, Noting())
    relay = ours.app.relay()
    relay.start()
    taken = []
    for _ in range(20 * plan.rounds):
        key = next(ours.keys)
        ours.app.send("orders.paid", BODY, key=key)
        began = time.perf_counter()
        while key not in seen:
            time.sleep(0.0002)
        taken.append((seen[key] - began) * 1_000)
        time.sleep(0.01)
    relay.drain()
    relay.join(5)
    taken.sort()
    middle, late = taken[len(taken) // 2], taken[len(taken) * 99 // 100]
    part = f"{site.name}, from commit to publish"
    return Findings(lines=[line("message latency", part, spread([middle])), _late(part, late)])


def _late(part: str, late: float) -> Line:
    return line("message latency, late", part, Ratio(late, late, late))


class Bare:
    """A client of RabbitMQ without us, on a loop of its own."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._loop = asyncio.new_event_loop()
        self._keys: Iterator[str] = map(str, itertools.count())

    def __enter__(self) -> Bare:
        self._run(self._open())
        return self

    async def _open(self) -> None:
        import aio_pika

        self._connection = await aio_pika.connect(self._url)
        self._channel: Any = await self._connection.channel(publisher_confirms=True)
        await self._channel.set_qos(WINDOW)

    def __exit__(self, *_: object) -> None:
        self._run(self._connection.close())
        self._loop.close()

    def _run(self, work: Any) -> Any:
        return self._loop.run_until_complete(work)

    def declare(self, queue: str, kind: str = "classic") -> None:
        self._run(self._channel.declare_queue(queue, durable=True, arguments={"x-queue-type": kind}))

    def purge(self, queue: str) -> None:
        self._run(self._purge(queue))

    async def _purge(self, queue: str) -> None:
        await (await self._channel.get_queue(queue)).purge()

    def publish(self, queue: str) -> None:
        for _ in range(BATCH // WINDOW):
            self._run(self._publish(queue))

    async def _publish(self, queue: str) -> None:
        import aio_pika

        exchange, body = self._channel.default_exchange, b'{"order":17,"note":"' + b"x" * 900 + b'"}'
        kind: dict[str, Any] = {"delivery_mode": 2, "content_type": "application/json"}
        sent = [aio_pika.Message(body, message_id=next(self._keys), **kind) for _ in range(WINDOW)]
        await asyncio.gather(*(exchange.publish(one, routing_key=queue, mandatory=True) for one in sent))

    def consume(self, queue: str, insert: Callable[[str], object]) -> None:
        self._run(self._consume(queue, insert))

    async def _consume(self, queue: str, insert: Callable[[str], object]) -> None:
        left = BATCH
        source = await self._channel.get_queue(queue)
        async with source.iterator() as messages:
            async for message in messages:
                insert(str(message.message_id))
                await message.ack()
                left -= 1
                if not left:
                    return
