"""Sources that answer what makes their sender do the wrong thing."""

from msgspec import structs

from tests.sources.broken.catalogue import breaks
from twiceproof.doors.reply import Reply
from twiceproof.doors.source import Handshake
from twiceproof.doors.sources.github import GitHub


@breaks("answers")
class ConflictsWithADuplicate(GitHub):
    def answer(self, word, *, run="", retry_in=1.0):
        reply = super().answer(word, run=run, retry_in=retry_in)
        return structs.replace(reply, status=409) if word == "duplicate" else reply


@breaks("answers")
class RefusesPoison(GitHub):
    def answer(self, word, *, run="", retry_in=1.0):
        reply = super().answer(word, run=run, retry_in=retry_in)
        return structs.replace(reply, status=400) if word == "poison" else reply


@breaks("answers")
class AcknowledgesWhatIsLost(GitHub):
    def answer(self, word, *, run="", retry_in=1.0):
        return super().answer("new" if word == "unavailable" else word, run=run, retry_in=retry_in)


@breaks("answers")
class DoesNotTellADuplicate(GitHub):
    def answer(self, word, *, run="", retry_in=1.0):
        return super().answer("new" if word == "duplicate" else word, run=run, retry_in=retry_in)


@breaks("answers")
class SaysNotWhen(GitHub):
    def answer(self, word, *, run="", retry_in=1.0):
        reply = super().answer(word, run=run, retry_in=retry_in)
        return structs.replace(reply, headers=tuple(pair for pair in reply.headers if pair[0] != "retry-after"))


@breaks("answers", "sizes")
class TakesADeliveryForAQuestion(GitHub):
    def greet(self, envelope):
        return Handshake(Reply(200))


@breaks("answers")
class EchoesAHeader(GitHub):
    def greet(self, envelope):
        return Handshake(Reply(200, (("x", "a\r\nb"),))) if envelope.method == "OPTIONS" else None


@breaks("answers")
class KnowsNoHorizon(GitHub):
    horizon = 0.0


@breaks("answers")
class SaysNotWhatItSays(GitHub):
    def answer(self, word, *, run="", retry_in=1.0):
        reply = super().answer(word, run=run, retry_in=retry_in)
        return structs.replace(reply, headers=tuple(pair for pair in reply.headers if pair[0] != "content-type"))


@breaks("answers")
class HasNoName(GitHub):
    name = ""
