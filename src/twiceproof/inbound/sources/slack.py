"""Slack events: HMAC-SHA256 over `v0:time:body`, replies within three seconds, and a URL challenge."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import structs

from ..reply import Reply, json_reply
from ..source import WINDOW, DeliveryOutcome, Envelope, Event, Handshake, Poison, Reading
from .parsing import made_up_id, named, object_of, text_at
from .signed import UNSIGNED, Signed, Signer, moment, raw

__all__ = ["Slack"]


PREFIX = "v0="
TIME, SIGNATURE = "x-slack-request-timestamp", "x-slack-signature"


class Slack(Signer):
    name = "slack"
    retry_window = 3_600.0  # retries at once, after a minute, after five
    deadline = 3.0
    window = WINDOW
    covered = (TIME, SIGNATURE)

    def signed_part(self, envelope: Envelope) -> Signed | str:
        given, time = envelope.header(SIGNATURE), envelope.header(TIME)
        at = moment(time)
        if at is None or not given.startswith(PREFIX):
            return UNSIGNED
        return Signed([given.removeprefix(PREFIX)], raw(f"v0:{time}:") + envelope.body, at)

    def read(self, envelope: Envelope) -> Reading:
        payload = object_of(envelope)
        if isinstance(payload, Poison):
            return payload
        if payload.get("type") == "url_verification":
            return Handshake(json_reply(200, {"challenge": text_at(payload, "challenge")}))
        name = _id_of(payload)
        if isinstance(name, Poison):
            return name
        kind = text_at(payload, "event", "type") or text_at(payload, "type")
        return [Event(name, payload, kind, attempt=envelope.header("x-slack-retry-num"))]

    def answer(self, outcome: DeliveryOutcome, *, run: str = "", retry_in: float = 1.0) -> Reply:
        """Add x-slack-no-retry to final replies: Slack retries without waiting for a slow reply."""
        reply = super().answer(outcome, run=run, retry_in=retry_in)
        if reply.status >= 300:
            return reply
        return structs.replace(reply, headers=(*reply.headers, ("x-slack-no-retry", "1")))

    def example(self, payload: Any = None) -> bytes:
        given = {"event": {"type": "app_mention", "text": "hello"}} if payload is None else payload
        more = {"type": "event_callback", "team_id": "T1", "event_id": made_up_id(given, "Ev")}
        return msgspec.json.encode({**more, **given} if isinstance(given, dict) else given)

    def seal(self, body: bytes, secret: str, now: float) -> Envelope:
        signature = PREFIX + self.sign(secret, raw(f"v0:{now:.0f}:") + body)
        headers = {"content-type": "application/json", TIME: f"{now:.0f}", SIGNATURE: signature}
        return Envelope(self.name, body, headers, received_at=now)


def _id_of(payload: dict[str, Any]) -> str | Poison:
    if payload.get("type") == "app_rate_limited":  # the only kind without an event id
        return named("app_rate_limited", payload.get("team_id"), payload.get("minute_rate_limited"))
    return named(payload.get("event_id"))
