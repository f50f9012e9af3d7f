"""Brokers, webhooks and routes: which target a topic goes to. A route is resolved when a message is sent."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Literal, Protocol
from urllib.parse import urlsplit

from msgspec import Struct

from ..brokers.base import OutgoingMessage, Publication
from ..claims.claim import validate_name
from ..claims.policy import Duration
from ..effects.repeat import Retry
from ..errors import Misuse
from ..keys.duration import seconds
from ..keys.key import is_blank
from ..secret import Env, Secret, secrets_of

__all__ = [
    "DEFAULT_RETRY",
    "LargeBody",
    "OnParked",
    "OnUnknown",
    "Publisher",
    "Routing",
    "Target",
    "TopicRoute",
    "WebhookTarget",
    "webhook",
]


OnUnknown = Literal["resend", "review"]
OnParked = Literal["hold", "skip"]
LargeBody = Literal["refuse", "reference"]

# Counts only refusals of the message itself. While a broker cannot be reached, no attempt is counted.
DEFAULT_RETRY = Retry(attempts=1_000, first=1.0, most="10m", within="2d")
PATIENCE = 10.0  # seconds that one call of a broker may take


class Publisher(Protocol):
    """What a relay needs of a target. Every `Broker` is one."""

    def publish(self, messages: Sequence[OutgoingMessage], patience: float) -> Sequence[Publication]: ...

    def close(self) -> None: ...


class Target(Struct, frozen=True):
    """A broker or a webhook by name, how it is opened, and its retry policy.

    At most `most` messages are published together. A `shared` one was opened by the user, and is not closed here.
    """

    name: str
    open: Callable[[], Publisher]
    retry: Retry = DEFAULT_RETRY
    keep_sent: float = 7 * 86_400.0
    patience: float = PATIENCE
    most: int = 500
    shared: bool = False


class WebhookTarget(Struct, frozen=True):
    """A receiver of Standard Webhooks, made with `webhook(…)`."""

    url: str
    secret: Secret
    name: str = ""
    allow: tuple[str, ...] = ()
    timeout: float = PATIENCE

    def __repr__(self) -> str:
        return f"webhook({_shown_host(self.url)!r})"


def webhook(
    url: str, secret: Secret, *, name: str = "", allow: tuple[str, ...] = (), timeout: Duration = PATIENCE
) -> WebhookTarget:
    """Return a target that posts each message as a signed Standard Webhook: `app.route(…, to=webhook(url, secret))`.

    Args:
        url: Where to post; public https addresses only, and those that `allow` permits.
        secret: What it is signed with: `env("HOOK")`.
        name: The target's name in the ledger; by default made from the URL. Give one if the URL may change.
        allow: Networks and hosts that are permitted beside public ones.
        timeout: How long one attempt may take.
    """
    if any(isinstance(one, str) and is_blank(one) for one in ([secret] if isinstance(secret, str | Env) else secret)):
        raise Misuse('A webhook is signed; give it a secret: webhook(url, secret=env("HOOK")).')
    given = name or f"{_shown_host(url)}-{sha256(url.encode()).hexdigest()[:8]}"
    return WebhookTarget(url, secret, validate_name("webhook", given), tuple(allow), seconds(timeout, name="timeout"))


def _shown_host(url: str) -> str:
    """Return the host alone: the path of a webhook's URL is often a secret."""
    return re.sub(r"[^A-Za-z0-9.-]", "-", urlsplit(url).hostname or "webhook")


class TopicRoute(Struct, frozen=True):
    """Messages of these topics go to this target. `place` is the exchange, queue or topic at that target; empty: the
    topic's own name.
    """

    topics: str
    target: str
    place: str = ""
    on_unknown: OnUnknown = "resend"
    on_parked: OnParked = "hold"
    large: LargeBody = "refuse"

    def matches(self, topic: str) -> bool:
        parts = (re.escape(part) for part in self.topics.split("*"))
        return re.fullmatch(".*".join(parts), topic) is not None


class Routing:
    """The targets and routes of an app."""

    def __init__(self) -> None:
        self.targets: dict[str, Target] = {}
        self._webhooks: dict[str, WebhookTarget] = {}
        self.routes: list[TopicRoute] = []

    # -- declaring -------------------------------------------------------------------------------

    def add_broker(
        self, name: str, broker: str | Env | Publisher, retry: Retry | None, keep_sent: Duration, patience: Duration
    ) -> None:
        validate_name("broker", name)
        if name in self.targets:
            raise Misuse(f"A target is called {name!r} already; give this one another name.")
        self.targets[name] = Target(
            name,
            _opener(name, broker),
            _checked(retry),
            seconds(keep_sent, name="keep_sent"),
            seconds(patience, name="patience"),
            shared=not isinstance(broker, str | Env),
        )

    def add_route(self, route: TopicRoute, to: str | WebhookTarget) -> None:
        if not route.topics or any(letter in route.topics for letter in " /#>"):
            raise Misuse(f"{route.topics!r} names no topics; write them like orders.paid or orders.*")
        if route.on_unknown not in ("resend", "review"):
            raise Misuse(f'on_unknown={route.on_unknown!r} is not known; use "resend" or "review".')
        if route.on_parked not in ("hold", "skip"):
            raise Misuse(f'on_parked={route.on_parked!r} is not known; use "hold" or "skip".')
        if route.large not in ("refuse", "reference"):
            raise Misuse(f'large={route.large!r} is not known; use "refuse" or "reference".')
        if isinstance(to, WebhookTarget):
            self._add_webhook(to)
        elif to not in self.targets:
            known = ", ".join(sorted(self.targets)) or "none"
            raise Misuse(f"No broker is called {to!r} (known: {known}); declare it first: app.broker({to!r}, url).")
        self.routes.append(route)

    def _add_webhook(self, hook: WebhookTarget) -> None:
        """Several routes may lead to one webhook. Two different webhooks never share a target: one would receive the
        other's messages.
        """
        if self._webhooks.get(hook.name) == hook:
            return
        if hook.name in self.targets:
            raise Misuse(
                f"A target is called {hook.name!r} already, and differs from this webhook; give it another name=."
            )
        self._webhooks[hook.name] = hook

        def opened() -> Publisher:
            from .webhook_publisher import WebhookPublisher  # loads HTTP and TLS

            return WebhookPublisher(hook.url, lambda: secrets_of(hook.secret), allow=hook.allow, timeout=hook.timeout)

        self.targets[hook.name] = Target(hook.name, opened, patience=hook.timeout * 3, most=50)

    # -- resolving -------------------------------------------------------------------------------

    def of(self, topic: str) -> list[TopicRoute]:
        """Return the routes of a topic, one for each target. It is an error if there is none: the message would be
        lost.
        """
        found = [route for route in self.routes if route.matches(topic)]
        if not found:
            raise Misuse(f'No route takes the topic {topic!r}; declare one: app.route("{topic}", to="main").')
        targets = [route.target for route in found]
        for route in found:
            if targets.count(route.target) > 1:
                raise Misuse(f"Two routes take {topic!r} to {route.target}; make their topics differ, or remove one.")
        return found


def _checked(retry: Retry | None) -> Retry:
    if retry is not None and not isinstance(retry, Retry):
        raise Misuse(f"retry={retry!r} is no policy; write retry=Retry(attempts=20).")
    return DEFAULT_RETRY if retry is None else retry


def _opener(name: str, broker: str | Env | Publisher) -> Callable[[], Publisher]:
    if not broker or not (isinstance(broker, str | Env) or hasattr(broker, "publish")):
        raise Misuse(f'app.broker({name!r}, …) takes a URL, env("…") or a broker; write it like "amqp://host/vhost".')

    def opened() -> Publisher:
        if not isinstance(broker, str | Env):
            return broker
        from ..brokers.open import open_broker  # a driver each

        return open_broker(secrets_of(broker)[0])

    return opened
