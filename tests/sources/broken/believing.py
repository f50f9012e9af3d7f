"""Sources that believe what they should not."""

import hmac
import json

from tests.sources.broken.catalogue import breaks
from twiceproof.doors.sources.cloudevents import CloudEvents
from twiceproof.doors.sources.github import GitHub
from twiceproof.doors.sources.signature import FORGED, UNSIGNED, Signed, mac, raw
from twiceproof.doors.sources.slack import Slack
from twiceproof.doors.sources.stripe import Stripe


@breaks("forged", "arrays", "poison")
class ReadsBeforeItVerifies(GitHub):
    def signed_part(self, envelope):
        part = super().signed_part(envelope)
        if isinstance(part, str):
            return part
        return Signed(part.given, json.dumps(json.loads(envelope.body), sort_keys=True).encode())

    def seal(self, body, secret, now):
        sent = super().seal(body, secret, now)
        try:
            message = json.dumps(json.loads(body), sort_keys=True).encode()
        except ValueError:
            return sent
        return type(sent)(sent.source, body, {**sent.headers, self.covered[0]: "sha256=" + self.sign(secret, message)})


@breaks("forged")
class ComparesLetterByLetter(GitHub):
    def verify(self, envelope, secrets, now):
        part = self.signed_part(envelope)
        if isinstance(part, str):
            return part
        return "" if any(self.sign(secret, part.message) == part.given[0] for secret in secrets if secret) else FORGED


@breaks("replayed")
class IgnoresTheTime(Stripe):
    def signed_part(self, envelope):
        part = super().signed_part(envelope)
        return part if isinstance(part, str) else Signed(part.given, part.message)


@breaks("replayed")
class BelievesTheFuture(Slack):
    def verify(self, envelope, secrets, now):
        why = super().verify(envelope, secrets, now)
        return "" if "future" in why else why


@breaks("replayed")
class BelievesThePast(Slack):
    def verify(self, envelope, secrets, now):
        why = super().verify(envelope, secrets, now)
        return "" if "ago" in why else why


@breaks("replayed")
class SaysThatNoTimeIsSigned(IgnoresTheTime):
    window = 0.0


@breaks("forged", "sizes")
class LeavesTheTimeUnsigned(Stripe):
    def signed_part(self, envelope):
        part = super().signed_part(envelope)
        return part if isinstance(part, str) else Signed(part.given, envelope.body, part.at)

    def seal(self, body, secret, now):
        sent = super().seal(body, secret, now)
        value = f"t={now:.0f},v1={self.sign(secret, body)}"
        return type(sent)(sent.source, body, {**sent.headers, self.covered[0]: value}, received_at=now)


@breaks("rotated", "forged")
class KnowsTheFirstSecretOnly(Stripe):
    def verify(self, envelope, secrets, now):
        return super().verify(envelope, secrets[:1], now)


@breaks("rotated")
class FallsOverAnOddSecret(GitHub):
    def sign(self, secret, message):
        return mac(secret.encode("ascii"), message)


@breaks("forged", "sizes", "poison", "rotated")
class BelievesTheUnsigned(GitHub):
    def verify(self, envelope, secrets, now):
        why = super().verify(envelope, secrets, now)
        return "" if why == UNSIGNED else why


@breaks("forged")
class BelievesAnOlderSignature(GitHub):
    def verify(self, envelope, secrets, now):
        older = envelope.header("x-hub-signature").removeprefix("sha1=")
        if any(hmac.compare_digest(mac(raw(secret), envelope.body, "sha1"), older) for secret in secrets if secret):
            return ""
        return super().verify(envelope, secrets, now)


@breaks("forged", "poison")
class TrimsTheBody(GitHub):
    def signed_part(self, envelope):
        part = super().signed_part(envelope)
        return part if isinstance(part, str) else Signed(part.given, part.message.strip())


@breaks("forged")
class DoesNotMindTheCase(GitHub):
    def signed_part(self, envelope):
        part = super().signed_part(envelope)
        return part if isinstance(part, str) else Signed([part.given[0].lower()], part.message)


@breaks("forged")
class TakesAnEmptySecret(GitHub):
    def verify(self, envelope, secrets, now):
        part = self.signed_part(envelope)
        if isinstance(part, str):
            return part
        return (
            ""
            if any(hmac.compare_digest(raw(self.sign(s, part.message)), raw(part.given[0])) for s in secrets)
            else FORGED
        )


@breaks("forged", "sizes")
class FallsOverAnOddTime(Slack):
    def signed_part(self, envelope):
        float(envelope.header("x-slack-request-timestamp"))
        return super().signed_part(envelope)


@breaks("forged")
class TellsTheSecret(GitHub):
    def verify(self, envelope, secrets, now):
        why = super().verify(envelope, secrets, now)
        return why and f"{why}: {secrets}"


@breaks("forged", "rotated", "poison")
class BelievesWhoKnowsTheAddress(CloudEvents):
    def verify(self, envelope, secrets, now):
        return ""


@breaks("forged", "sizes", "rotated")
class KnowsNoProof(GitHub):
    """Somebody forgot to say what the signature vouches for."""

    covered = ()


@breaks("forged", "rotated", "replayed", "ids", "arrays", "sizes", "poison")
class BelievesNothing(GitHub):
    def verify(self, envelope, secrets, now):
        return FORGED


@breaks("replayed")
class IsInAHurry(Stripe):
    def verify(self, envelope, secrets, now):
        return super().verify(envelope, secrets, now) or ("" if abs(envelope.received_at - now) < 60 else "too late")


@breaks("forged", "arrays", "poison")
class SignsItsNameOnly(GitHub):
    def signed_part(self, envelope):
        part = super().signed_part(envelope)
        return part if isinstance(part, str) else Signed(part.given, b"github")

    def seal(self, body, secret, now):
        sent = super().seal(body, secret, now)
        return type(sent)(
            sent.source, body, {**sent.headers, self.covered[0]: "sha256=" + self.sign(secret, b"github")}
        )
