"""Sources that read what is not there, or not what is."""

import json

from tests.contracts.sources.broken.catalogue import breaks
from twiceproof.inbound.source import Event, Poison
from twiceproof.inbound.sources.event_grid import EventGrid
from twiceproof.inbound.sources.github import GitHub
from twiceproof.inbound.sources.parsing import named, object_of, parse_json
from twiceproof.inbound.sources.shopify import Shopify
from twiceproof.inbound.sources.stripe import Stripe


def _with_id(reading, name):
    return reading if isinstance(reading, Poison) else [Event(name, event.payload, event.type) for event in reading]


@breaks("events")
class ClaimsTheAttempt(Shopify):
    needs = (*Shopify.needs, "x-attempt")

    def read(self, envelope):
        reading = super().read(envelope)
        name = f"{envelope.header('x-shopify-webhook-id')}-{envelope.header('x-attempt')}"
        return _with_id(reading, name)


@breaks("events")
class ClaimsTheTime(Stripe):
    def read(self, envelope):
        return _with_id(super().read(envelope), f"evt_{envelope.received_at:.0f}")


@breaks("events")
class ClaimsTheKind(Stripe):
    def read(self, envelope):
        reading = super().read(envelope)
        return reading if isinstance(reading, Poison) else _with_id(reading, reading[0].type)


@breaks("events")
class ClaimsWhatCannotBeClaimed(Stripe):
    def read(self, envelope):
        payload = parse_json(envelope.body)
        if not isinstance(payload, dict) or not str(payload.get("id") or ""):
            return payload if isinstance(payload, Poison) else Poison("no id")
        return [Event(f" {payload['id']}\n", payload)]


@breaks("events")
class KeepsTooLittleOfALetter(GitHub):
    needs = ()


@breaks("events")
class KeepsTheProofWithALetter(GitHub):
    needs = (*GitHub.needs, "x-hub-signature-256")


@breaks("events")
class ReadsAnotherEachTime(Stripe):
    count = 0

    def read(self, envelope):
        Stripe.count = getattr(Stripe, "count", 0) + 1
        return _with_id(super().read(envelope), f"evt_{Stripe.count}")


@breaks("events")
class ReadsWhatPythonReads(Stripe):
    """`json.loads` takes NaN, names that are there twice, and half a surrogate pair."""

    def read(self, envelope):
        if envelope.header("content-type") != "application/json; charset=utf-8":
            return Poison("its content type")
        try:
            payload = json.loads(envelope.body)
        except (ValueError, RecursionError):
            return Poison("no JSON")
        name = payload.get("id") if isinstance(payload, dict) else None
        return [Event(name, payload)] if isinstance(name, str) and name else Poison("no id")


@breaks("events")
class ReadsAnyContentType(Stripe):
    def read(self, envelope):
        envelope.headers["content-type"] = "application/json"
        return super().read(envelope)


@breaks("events")
class FallsOverWhatIsNoObject(Stripe):
    def read(self, envelope):
        payload = parse_json(envelope.body)
        payload["id"]
        return super().read(envelope)


@breaks("events")
class LosesDigits(Stripe):
    def read(self, envelope):
        reading = super().read(envelope)
        if isinstance(reading, Poison):
            return reading
        return [Event(event.id, json.loads(json.dumps(event.payload), parse_int=float)) for event in reading]


@breaks("events")
class MakesUpAnId(GitHub):
    def read(self, envelope):
        payload = object_of(envelope)
        if isinstance(payload, Poison):
            return payload
        name = named(envelope.header("x-github-delivery"))
        return [Event("unknown" if isinstance(name, Poison) else name, payload)]


@breaks("events")
class ReadsTheFirstOnly(EventGrid):
    def read(self, envelope):
        reading = super().read(envelope)
        return reading if isinstance(reading, Poison) else reading[:1]


@breaks("events")
class CountsTheEvents(EventGrid):
    def read(self, envelope):
        reading = super().read(envelope)
        if isinstance(reading, Poison):
            return reading
        return [Event(f"{nth}-{len(event.payload)}", event.payload) for nth, event in enumerate(reading)]


@breaks("events")
class KnowsNoLimit(Stripe):
    largest = 1 << 40

    def example(self, payload=None):
        return super().example({"filler": ""} if isinstance(payload, dict) and "filler" in payload else payload)


@breaks("events")
class ReadsBytes(Stripe):
    def read(self, envelope):
        reading = super().read(envelope)
        return (
            reading if isinstance(reading, Poison) else [Event(event.id, {"raw": envelope.body}) for event in reading]
        )


@breaks("events")
class TellsWhenItCame(Stripe):
    def read(self, envelope):
        reading = super().read(envelope)
        if isinstance(reading, Poison):
            return reading
        return [Event(event.id, {**event.payload, "came": envelope.received_at}) for event in reading]


@breaks("events")
class FallsOverAnOddHeader(GitHub):
    def read(self, envelope):
        int(envelope.header("x-github-delivery"), 16)
        return super().read(envelope)
