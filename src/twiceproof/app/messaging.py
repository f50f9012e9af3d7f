"""App methods about messages: broker, route, send, outbox, relay."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..claims.policy import Duration
from ..effects.repeat import Retry
from ..flows.runtime import Runtime, Tenants
from ..records import record_kind

if TYPE_CHECKING:
    from ..outbox.relay import Relay
    from ..outbox.routing import OnParked, OnUnknown, Publisher, Routing, WebhookTarget
    from ..outbox.transaction_outbox import LateRings, TransactionOutbox
    from ..secret import Env

__all__ = ["Messaging"]


# Of `outbox`, which is loaded when first needed: a sweep and a rotation of keys must know every kind.
record_kind("message", expires=True)
record_kind("ticket")
record_kind("pause")


class Messaging:
    """The methods of an app that declare targets of messages, and send them."""

    parts: Runtime
    tenants: Tenants

    @property
    def routing(self) -> Routing:
        """The targets and routes that were declared."""
        from ..outbox.routing import Routing

        shared = self._of_root()
        if "routing" not in shared:
            shared["routing"] = Routing()
            self.parts.root.beside_worker.append(self.relay)
        known: Routing = shared["routing"]
        return known

    def _of_root(self) -> dict[str, Any]:
        """Return what all tenants' views of this app share."""
        shared: dict[str, Any] = self.parts.root.__dict__.setdefault("messaging", {})
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
        """
        from ..outbox.routing import TopicRoute

        target = to if isinstance(to, str) else to.name
        self.routing.add_route(TopicRoute(topics, target, place, on_unknown, on_parked), to)

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
    ) -> Any:
        """Send a message; a relay publishes it. In a flow or a step it is sent once, whatever is replayed.

        In a step it is written with the step's completion, and under @app.transaction in the same transaction. Returns
        a `SentMessage`; await it in an `async def` flow, and on an event loop outside of flows.

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
        from ..flows.sending import send
        from ..outbox.sending import Sending

        return send(self.parts, self.routing, Sending(topic, body, key, order, headers, delay, content_type))

    def outbox(self, connection: Any) -> TransactionOutbox:
        """Send messages in your own transaction: `with app.outbox(connection) as outbox: outbox.send(…)`.

        They are written when the block ends, and exist if you commit. Use `async with` for a connection that is
        awaited.

        Args:
            connection: One of sqlite3, psycopg, asyncpg, SQLAlchemy (Connection or Session, also asynchronous) or
                Django, to the ledger's own database, in a transaction.
        """
        from ..flows.sending import minted_key, origin_of
        from ..flows.transaction import joining
        from ..outbox.transaction_outbox import TransactionOutbox

        parts = self.parts
        return TransactionOutbox(
            joining(parts.store),
            connection,
            tenant=parts.tenant,
            routing=self.routing,
            origin=lambda: origin_of(parts),
            mint=minted_key,
            ring=self._rings(),
        )

    def _rings(self) -> LateRings:
        from ..outbox.transaction_outbox import LateRings

        shared = self._of_root()
        if "rings" not in shared:
            notify = getattr(self.parts.store, "notify", lambda names: None)
            shared["rings"] = LateRings(notify, self.parts.clock.monotonic)
        rings: LateRings = shared["rings"]
        return rings

    def relay(self) -> Relay:
        """Return a relay for this process, which publishes messages. `twiceproof work` runs one beside its worker.

        Scripts call `.run(until_idle=True)`.
        """
        from ..outbox.relay import Relay

        parts = self.parts.root
        return Relay(parts.store, self.routing, self.tenants.known, clock=parts.clock, roll=parts.roll)

    def _stop_messaging(self) -> None:
        """End the threads that were started for messages."""
        rings = self._of_root().pop("rings", None)
        if rings is not None:
            rings.stop()
