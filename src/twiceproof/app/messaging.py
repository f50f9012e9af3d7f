"""App methods about messages: broker, route, send, outbox, relay; and notices to people."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Literal, overload

from ..claims.claim import validate_name
from ..claims.duplicates import DuplicateCounter
from ..claims.error_messages import one_write_store
from ..claims.policy import Duration
from ..effects.duplicate_alerts import EVENTS
from ..effects.repeat import Retry
from ..errors import Misuse
from ..flows.runtime import Runtime, Tenants
from ..flows.workers.due_work import DueWork, IncidentScan
from ..keys.duration import seconds
from ..records import record_kind
from ..stores.grouped import GroupedStore

if TYPE_CHECKING:
    from ..effects.duplicate_alerts import Hook
    from ..effects.incidents import Incidents
    from ..outbox.drain import Drain, Drains
    from ..outbox.foreign_table import ForeignOutbox
    from ..outbox.relay import Relay
    from ..outbox.routing import LargeBody, OnParked, OnUnknown, Publisher, Routing, WebhookTarget
    from ..outbox.sending import SentOrAwaitable
    from ..outbox.transaction_outbox import LateRings, TransactionOutbox
    from ..secret import Env

__all__ = ["Messaging"]


# Kinds of parts that are loaded when they are first needed: a sweep and a rotation of keys must know every kind.
record_kind("message", expires=True)
for _name in ("ticket", "pause", "drain"):
    record_kind(_name)
record_kind("act", expires=True)
for _name in ("release", "number", "proof", "live", "draft", "change"):  # of flows in files
    record_kind(_name)
for _name in ("session", "form", "login"):  # of the dashboard
    record_kind(_name, expires=True)


class Messaging:
    """The methods of an app that declare targets of messages, send them, and tell people what needs attention."""

    runtime: Runtime
    tenants: Tenants
    tally: DuplicateCounter
    due_work: list[DueWork]
    incidents: list[Incidents]

    @property
    def routing(self) -> Routing:
        """The targets and routes that were declared."""
        from ..outbox.routing import Routing

        shared = self._of_root()
        if "routing" not in shared:
            shared["routing"] = Routing()
            self.runtime.root.beside_worker.append(self.relay)
        known: Routing = shared["routing"]
        return known

    def _of_root(self) -> dict[str, Any]:
        """Return what all tenants' views of this app share."""
        shared: dict[str, Any] = self.runtime.root.__dict__.setdefault("messaging", {})
        return shared

    def broker(
        self,
        name: str,
        url: str | Env | Publisher,
        *,
        retry: Retry | None = None,
        keep_sent: Duration = "7d",
        patience: Duration = 10.0,
    ) -> None:
        """Declare a broker that messages are published to, or received from.

        Args:
            name: Its name in routes and in the ledger.
            url: Its URL, `env("RABBIT_URL")`, or an open broker.
            retry: How often, and for how long, a message is tried that the broker refuses; by default for two days.
            keep_sent: How long it is known what was sent.
            patience: How long one call of the broker may take.
        """
        self.routing.add_broker(name, url, retry, keep_sent, patience)

    def route(
        self,
        topics: str,
        *,
        to: str | WebhookTarget,
        place: str = "",
        on_unknown: OnUnknown = "resend",
        on_parked: OnParked = "hold",
        large: LargeBody = "refuse",
    ) -> None:
        """Say where messages of a topic go. Several routes may take a topic, each to another target.

        Args:
            topics: A topic (`orders.paid`), or several (`orders.*`).
            to: The name of a broker, or `webhook(url, secret)`.
            place: Where in the broker: its exchange, subject, stream or queue; by default the topic itself.
            on_unknown: What follows if the target does not answer: "resend" publishes again with the same key,
                "review" leaves it to a person.
            on_parked: Whether a message that waits for review holds up those with the same order key ("hold"), or not
                ("skip").
            large: What becomes of a body of more than 256 KB. "refuse": it is refused. "reference": the body of a flow
                keeps it as a resource, and sends a reference to it.
        """
        if self.runtime.store.batch_limit == 1:
            raise one_write_store("The outbox")
        from ..outbox.routing import TopicRoute

        target = to if isinstance(to, str) else to.name
        self.routing.add_route(TopicRoute(topics, target, place, on_unknown, on_parked, large), to)

    def send(
        self,
        topic: str,
        body: Any,
        *,
        key: str | None = None,
        order: str | None = None,
        headers: Mapping[str, str] | None = None,
        delay: Duration = 0.0,
        content_type: str | None = None,
    ) -> SentOrAwaitable:
        """Send a message; a relay publishes it. In a flow or a step it is sent once, whatever is replayed.

        In a step it is written with the step's completion, and under @app.transaction in the same transaction; a step
        that was cut off and is then looked up or settled sends nothing, and a warning says so. Returns a `SentMessage`;
        await it in an `async def` flow, and on an event loop outside of flows.

        Args:
            topic: What it is about; routes choose targets by it.
            body: Plain data, which becomes JSON, or bytes with a content type.
            key: The delivery key; in a flow or a step there is one by default. The same key with the same body is one
                message; with another body, `PayloadMismatch`.
            order: Messages with the same order key are published in the order in which they were sent.
            headers: Headers to send along.
            delay: How long to wait before it is published.
            content_type: The type of a body of bytes.
        """
        if self.runtime.store.batch_limit == 1:
            raise one_write_store("The outbox")
        from ..flows.sending import send
        from ..outbox.sending import Sending

        sent: SentOrAwaitable = send(
            self.runtime, self.routing, Sending(topic, body, key, order, headers, delay, content_type)
        )
        return sent

    @overload
    def outbox(self, connection: Any) -> TransactionOutbox: ...

    @overload
    def outbox(self, connection: Any, *, ledger: Literal["elsewhere"]) -> ForeignOutbox: ...

    @overload
    def outbox(self, connection: Any, *, ledger: Literal["here", "elsewhere"]) -> TransactionOutbox | ForeignOutbox: ...

    def outbox(
        self, connection: Any, *, ledger: Literal["here", "elsewhere"] = "here"
    ) -> TransactionOutbox | ForeignOutbox:
        """Send messages in your own transaction: `with app.outbox(connection) as outbox: outbox.send(…)`.

        They are written when the block ends, and exist if you commit. Use `async with` for a connection that is
        awaited.

        Args:
            connection: One of sqlite3, psycopg, asyncpg, PyMySQL, SQLAlchemy (Connection or Session, also asynchronous)
                or Django, in a transaction.
            ledger: Where the ledger is: "here", in the connection's own database, or "elsewhere". Then the messages are
                rows of the table that `twiceproof outbox ddl` prints, and `app.drain` moves them into the ledger.
        """
        if ledger == "elsewhere":
            return self._foreign_outbox(connection)
        if ledger != "here":
            raise Misuse(f'ledger={ledger!r} is not known; use "here" or "elsewhere".')
        from ..flows.sending import minted_key, origin_of
        from ..flows.transaction import joining
        from ..outbox.transaction_outbox import TransactionOutbox

        runtime = self.runtime
        return TransactionOutbox(
            joining(runtime.store),
            connection,
            tenant=runtime.tenant,
            routing=self.routing,
            origin=lambda: origin_of(runtime),
            mint=minted_key,
            ring=self._rings(),
        )

    def _foreign_outbox(self, connection: Any) -> ForeignOutbox:
        from ..flows.sending import minted_key, origin_of
        from ..outbox.foreign_table import ForeignOutbox

        runtime = self.runtime
        origin = lambda: origin_of(runtime)  # noqa: E731 - asked when a message is sent
        return ForeignOutbox(connection, tenant=runtime.tenant, routing=self.routing, origin=origin, mint=minted_key)

    def drain(self, source: Any, *, every: Duration = "1s", name: str | None = None) -> None:
        """Move messages from an outbox table in another database into the ledger, beside workers and relays.

        Each is moved once, whatever dies in between, and in the order of its order key. Start as many workers as you
        like: one of them moves at a time.

        Args:
            source: A URL (postgresql://, mariadb://, sqlite:///), `env("SHOP_DB")`, a function that makes a connection,
                a SQLAlchemy engine, or a pool.
            every: How often to look for messages.
            name: Its name in logs and in the ledger, the same in all processes; by default `outbox-1` for the first.
        """
        from ..outbox.drain import Drain

        drains = self._drains()
        given = validate_name("drain", name if name is not None else f"outbox-{len(drains) + 1}")
        if any(one.name == given for one in drains):
            raise Misuse(f"A drain is called {given!r} already; give this one another name.")
        runtime, routing = self.runtime, self.routing
        span = seconds(every, name="every")
        drains.append(
            Drain(runtime.store, source, runtime.tenant, routing, every=span, name=given, clock=runtime.clock)
        )

    def _drains(self) -> list[Drain]:
        shared = self._of_root()
        if "drains" not in shared:
            shared["drains"] = []
            beside = self.runtime.root.beside_worker
            beside.insert(0, self.draining)  # what it moves is published by the relay after it
        drains: list[Drain] = shared["drains"]
        return drains

    def draining(self) -> Drains:
        """Return the movers of this process. `twiceproof work` and `twiceproof relay` run them.

        Scripts call `.run(until_idle=True)`.
        """
        from ..outbox.drain import Drains

        return Drains(self._of_root().get("drains", []))

    def _rings(self) -> LateRings:
        from ..outbox.transaction_outbox import LateRings

        shared = self._of_root()
        if "rings" not in shared:
            notify = getattr(self.runtime.store, "notify", lambda names: None)
            shared["rings"] = LateRings(notify, self.runtime.clock.monotonic)
        rings: LateRings = shared["rings"]
        return rings

    def relay(self) -> Relay:
        """Return a relay for this process, which publishes messages. `twiceproof work` runs one beside its worker.

        Scripts call `.run(until_idle=True)`.
        """
        from ..flows.workers.store_clock import StoreClock
        from ..outbox.lanes import LANE
        from ..outbox.message import MESSAGE_KIND, PENDING
        from ..outbox.relay import Relay

        runtime = self.runtime.root
        if runtime.store.batch_limit == 1:
            raise one_write_store("The outbox")
        watched = (MESSAGE_KIND, PENDING), (MESSAGE_KIND, LANE)
        store_clock = StoreClock(runtime.store, runtime.clock, watched, name="messages")
        return Relay(
            runtime.store,
            self.routing,
            self.tenants.known,
            clock=runtime.clock,
            roll=runtime.roll,
            at_store_time=store_clock.look,
        )

    def _stop_messaging(self) -> None:
        """End the threads that were started for messages."""
        rings = self._of_root().pop("rings", None)
        if rings is not None:
            rings.stop()

    # -- notices to people ------------------------------------------------------------------------

    def notify_duplicates(self, hook: Hook, *, quiet: Duration = "10m", threshold: int = 10, name: str = "") -> None:
        """Send a message when duplicates of a key were blocked often. One message per key and quiet period.

        Args:
            hook: What is called with the message.
            quiet: How long no further message is sent about the same key, by any process.
            threshold: How many blocked duplicates in this process, since the last message, are worth one.
            name: Tells hooks apart across processes; by default their order.
        """
        from ..effects.duplicate_alerts import DuplicateAlerts

        name = name or str(len(self.tally.told))
        self.tally.told.append(
            DuplicateAlerts(
                self.runtime.store,
                hook,
                name=name,
                quiet=seconds(quiet, name="quiet"),
                threshold=threshold,
                clock=self.runtime.clock,
            )
        )

    def notify(
        self,
        hook: Hook,
        *,
        on: str | Collection[str] = EVENTS,
        quiet: Duration = "10m",
        late: Duration = "15m",
        name: str = "",
    ) -> None:
        """Send a message about what needs attention: one per flow, event and quiet period. Runs do not wait for it.

        Args:
            hook: What is called with the message.
            on: Which events: "review" (a run or claim waits for review), "failure" (it failed for good),
                "dead-letter" (a delivery could not be processed), "finding" (a reconciliation found something),
                "approval" (a run waits for an approval, also the plan of a reconciliation over its cap),
                "message" (a message could not be published and waits for review),
                "late-message" (one waits for longer than `late`, and is not published yet).
            quiet: How long no further message is sent about the same, by any process.
            late: After how long a message that waits is late.
            name: Tells hooks apart across processes; by default their order.
        """
        from ..effects.incidents import Incidents

        store = self.runtime.store
        if not isinstance(store, GroupedStore):
            raise Misuse("This store does not tell what is written to it; open one by its URL: sqlite:///shop.db")
        incidents = Incidents(
            store,
            hook,
            on=on,
            quiet=seconds(quiet, name="quiet"),
            late=seconds(late, name="late"),
            name=name or str(len(self.incidents)),
            clock=self.runtime.clock,
        )
        self.incidents.append(incidents)
        store.on_commit.append(incidents.observe)
        self.due_work.append(IncidentScan(incidents))
