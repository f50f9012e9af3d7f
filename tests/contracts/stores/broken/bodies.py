"""Bodies that come back as something else."""

import json
import unicodedata

from msgspec import structs

from tests.contracts.stores.broken.catalogue import breaks
from twiceproof.records import Insert, Replace
from twiceproof.stores.memory import MemoryEngine


class Rewriting(MemoryEngine):
    def rewrite(self, body):
        raise NotImplementedError

    def _apply(self, write, nonce, now):
        if isinstance(write, Insert | Replace) and write.body is not None:
            write = structs.replace(write, body=self.rewrite(write.body))
        super()._apply(write, nonce, now)


@breaks("reads")
class BodyNormalised(Rewriting):
    def rewrite(self, body):
        return unicodedata.normalize("NFC", body)


@breaks("reads")
class BodyStripped(Rewriting):
    def rewrite(self, body):
        return body.strip()


@breaks("reads")
class BodyReadAsJson(Rewriting):
    """A JSON column: numbers and blanks change."""

    def rewrite(self, body):
        try:
            return json.dumps(json.loads(body))
        except ValueError:
            return body


@breaks("reads", "refusals")
class BodyCutAt64K(Rewriting):
    def rewrite(self, body):
        return body[:65_535]


@breaks("reads")
class LineEndsTranslated(Rewriting):
    def rewrite(self, body):
        return body.replace("\r\n", "\n")


@breaks("writes")
class BodyNotGivenIsEmptied(MemoryEngine):
    def _apply(self, write, nonce, now):
        if isinstance(write, Replace) and write.body is None:
            write = structs.replace(write, body="")
        super()._apply(write, nonce, now)


@breaks("writes", "reads")
class EmptyBodyMeansNotGiven(MemoryEngine):
    def _apply(self, write, nonce, now):
        if isinstance(write, Replace) and write.body == "":
            write = structs.replace(write, body=None)
        super()._apply(write, nonce, now)
