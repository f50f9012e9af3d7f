"""Addresses that a database takes for the same."""

import unicodedata

from msgspec import structs

from tests.contracts.stores.broken.catalogue import breaks
from twiceproof.records import Address, Batch, Conflict
from twiceproof.stores.memory import MemoryEngine


class Confused(MemoryEngine):
    """Looks up records by what it makes of their addresses."""

    def means(self, text):
        return text

    def address(self, at):
        return Address(self.means(at.space), self.means(at.kind), self.means(at.key))

    def commit(self, batches):
        seen = [
            Batch([structs.replace(write, at=self.address(write.at)) for write in batch.writes], batch.nonce)
            for batch in batches
        ]
        return [self._tell(batch, outcome) for batch, outcome in zip(batches, super().commit(seen), strict=True)]

    def _tell(self, batch, outcome):
        if not isinstance(outcome, Conflict):
            return outcome
        at = next(write.at for write in batch.writes if self.address(write.at) == outcome.at)
        found = outcome.found and structs.replace(outcome.found, at=at)
        return structs.replace(outcome, at=at, found=found)

    def fetch(self, addresses):
        founds = super().fetch([self.address(at) for at in addresses])
        return [
            structs.replace(found, record=found.record and structs.replace(found.record, at=at))
            for at, found in zip(addresses, founds, strict=True)
        ]


@breaks("reads", "due", "lists")
class UpperAndLowerCaseAreTheSame(Confused):
    """A case-insensitive collation."""

    def means(self, text):
        return text.lower()


@breaks("reads", "lists")
class BlanksAtTheEndDoNotCount(Confused):
    """A padded comparison."""

    def means(self, text):
        return text.rstrip(" ") or " "


@breaks("reads", "lists")
class NormalisedAddresses(Confused):
    def means(self, text):
        return unicodedata.normalize("NFKC", text)


@breaks("reads", "due", "writes", "concurrency", "fences", "lifecycle", "refusals", "lists")
class PartsJoinedByAColon(Confused):
    """One text for the whole address, without escaping."""

    def address(self, at):
        space, key = f"{at.space}:{at.kind}:{at.key}".rsplit(":", 1)
        return Address("", at.kind, f"{space}:{key}")

    def _matching(self, kind, space, state):
        for record in super()._matching(kind, None, state):
            if space is None or record.at.key.startswith(f"{space}:"):
                yield record
