"""Refusals that were forgotten."""

from msgspec import structs

from tests.contracts.stores.broken.catalogue import breaks_above
from twiceproof.errors import BadWrite
from twiceproof.records import Batch, Insert
from twiceproof.stores import validate
from twiceproof.stores.grouped import GroupedStore


class Forgetful(GroupedStore):
    """Takes what a part of the list of refusals would have caught."""

    def forgives(self, message):
        raise NotImplementedError

    def write(self, *writes, **more):
        try:
            return super().write(*writes, **more)
        except BadWrite as error:
            if not self.forgives(str(error)):
                raise
            return self._writes.request(Batch(writes, self._ids()))


@breaks_above("refusals")
class EmptyKeyAccepted(Forgetful):
    def forgives(self, message):
        return "is empty" in message


@breaks_above("refusals")
class NulAccepted(Forgetful):
    def forgives(self, message):
        return "NUL" in message


@breaks_above("refusals")
class LoneSurrogateAccepted(Forgetful):
    def forgives(self, message):
        return "surrogate" in message


@breaks_above("refusals")
class OverlongAccepted(Forgetful):
    def forgives(self, message):
        return "more than the" in message


@breaks_above("refusals")
class NoConditionNeeded(Forgetful):
    def forgives(self, message):
        return "condition" in message


@breaks_above("refusals")
class FenceZeroOpensEverything(Forgetful):
    def forgives(self, message):
        return "never drawn" in message


@breaks_above("fences")
class DeadLeasesAccepted(Forgetful):
    def forgives(self, message):
        return message.startswith("lease=")


@breaks_above("fences")
class DueTimesNotLookedAt(Forgetful):
    def forgives(self, message):
        return message.startswith("due_in=")


@breaks_above("refusals")
class LongKeysCut(GroupedStore):
    """Cut instead of refused: two long keys become one."""

    def write(self, *writes, **more):
        cut = [
            structs.replace(w, at=structs.replace(w.at, key=w.at.key[: validate.MOST_KEY]))
            for w in writes
            if isinstance(w, Insert) and isinstance(w.at.key, str)
        ]
        return super().write(*(cut if len(cut) == len(writes) else writes), **more)


@breaks_above("refusals")
class RefusedTooEarly(GroupedStore):
    """Half the length that was promised."""

    def write(self, *writes, **more):
        if any(isinstance(w.at.key, str) and len(w.at.key) > validate.MOST_KEY // 2 for w in writes):
            raise BadWrite("too long; shorten it.")
        return super().write(*writes, **more)
