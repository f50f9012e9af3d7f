"""Sources that answer what makes their sender do the wrong thing."""

from msgspec import structs

from tests.contracts.sources.broken.catalogue import breaks
from twiceproof.inbound.reply import Reply
from twiceproof.inbound.source import Handshake
from twiceproof.inbound.sources.github import GitHub


@breaks("events")
class ConflictsWithADuplicate(GitHub):
    def answer(self, outcome, *, run="", retry_in=1.0):
        reply = super().answer(outcome, run=run, retry_in=retry_in)
        return structs.replace(reply, status=409) if outcome == "duplicate" else reply


@breaks("events")
class RefusesPoison(GitHub):
    def answer(self, outcome, *, run="", retry_in=1.0):
        reply = super().answer(outcome, run=run, retry_in=retry_in)
        return structs.replace(reply, status=400) if outcome == "poison" else reply


@breaks("events")
class AcknowledgesWhatIsLost(GitHub):
    def answer(self, outcome, *, run="", retry_in=1.0):
        return super().answer("new" if outcome == "unavailable" else outcome, run=run, retry_in=retry_in)


@breaks("events")
class DoesNotTellADuplicate(GitHub):
    def answer(self, outcome, *, run="", retry_in=1.0):
        return super().answer("new" if outcome == "duplicate" else outcome, run=run, retry_in=retry_in)


@breaks("events")
class SaysNotWhen(GitHub):
    def answer(self, outcome, *, run="", retry_in=1.0):
        reply = super().answer(outcome, run=run, retry_in=retry_in)
        return structs.replace(reply, headers=tuple(pair for pair in reply.headers if pair[0] != "retry-after"))


@breaks("events")
class TakesADeliveryForAQuestion(GitHub):
    def greet(self, envelope):
        return Handshake(Reply(200))


@breaks("events")
class EchoesAHeader(GitHub):
    def greet(self, envelope):
        return Handshake(Reply(200, (("x", "a\r\nb"),))) if envelope.method == "OPTIONS" else None


@breaks("events")
class KnowsNoHorizon(GitHub):
    retry_window = 0.0


@breaks("events")
class SaysNotWhatItSays(GitHub):
    def answer(self, outcome, *, run="", retry_in=1.0):
        reply = super().answer(outcome, run=run, retry_in=retry_in)
        return structs.replace(reply, headers=tuple(pair for pair in reply.headers if pair[0] != "content-type"))


@breaks("events")
class HasNoName(GitHub):
    name = ""
