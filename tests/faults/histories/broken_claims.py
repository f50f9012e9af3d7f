"""Claims that decide wrongly about what they found."""

from __future__ import annotations

from msgspec import structs

from twiceproof.claims.manager import ClaimManager
from twiceproof.claims.states import decide


class Deciding(ClaimManager):
    """Decides takes by the function `wrongly`."""

    def take(self, ask, decide=None, found=None):
        return super().take(ask, self.wrongly, found)

    def wrongly(self, ask, record, now):
        raise NotImplementedError


class RepeatsBlindly(Deciding):
    def wrongly(self, ask, record, now):
        return decide(structs.replace(ask, repeat="safe"), record, now)


class ForgivesFailures(Deciding):
    def wrongly(self, ask, record, now):
        return decide(structs.replace(ask, retry=True), record, now)


class IgnoresFingerprints(Deciding):
    def wrongly(self, ask, record, now):
        return decide(structs.replace(ask, fingerprint=""), record, now)


class GivesAgain(Deciding):
    """A second request for a held claim is granted, as if it came from the same caller."""

    def wrongly(self, ask, record, now):
        client = ask.owner.partition(".")[0]
        if record is not None and record.state == "held" and f'"owner":"{client}.' in record.body:
            return decide(structs.replace(ask, repeat="safe"), structs.replace(record, lease_until=now), now)
        return decide(ask, record, now)
