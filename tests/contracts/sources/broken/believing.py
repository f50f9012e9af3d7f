"""Sources that believe what they should not."""

import hmac
import json

from tests.contracts.sources.broken.catalogue import breaks
from twiceproof.inbound.sources.cloudevents import CloudEvents
from twiceproof.inbound.sources.github import GitHub
from twiceproof.inbound.sources.signed import UNSIGNED, WRONG_SIGNATURE, Signed, mac, raw
from twiceproof.inbound.sources.slack import Slack
from twiceproof.inbound.sources.stripe import Stripe


@breaks("authenticity", "events")
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


@breaks("authenticity")
class ComparesLetterByLetter(GitHub):
    def verify(self, envelope, secrets, now):
        part = self.signed_part(envelope)
        if isinstance(part, str):
            return part
        return (
            ""
            if any(self.sign(secret, part.message) == part.given[0] for secret in secrets if secret)
            else WRONG_SIGNATURE
        )


@breaks("authenticity")
class IgnoresTheTime(Stripe):
    def signed_part(self, envelope):
        part = super().signed_part(envelope)
        return part if isinstance(part, str) else Signed(part.given, part.message)


@breaks("authenticity")
class BelievesTheFuture(Slack):
    def verify(self, envelope, secrets, now):
        why = super().verify(envelope, secrets, now)
        return "" if "future" in why else why


@breaks("authenticity")
class BelievesThePast(Slack):
    def verify(self, envelope, secrets, now):
        why = super().verify(envelope, secrets, now)
        return "" if "ago" in why else why


@breaks("authenticity")
class SaysThatNoTimeIsSigned(IgnoresTheTime):
    window = 0.0


@breaks("authenticity", "events")
class LeavesTheTimeUnsigned(Stripe):
    def signed_part(self, envelope):
        part = super().signed_part(envelope)
        return part if isinstance(part, str) else Signed(part.given, envelope.body, part.at)

    def seal(self, body, secret, now):
        sent = super().seal(body, secret, now)
        value = f"t={now:.0f},v1={self.sign(secret, body)}"
        return type(sent)(sent.source, body, {**sent.headers, self.covered[0]: value}, received_at=now)


@breaks("authenticity")
class KnowsTheFirstSecretOnly(Stripe):
    def verify(self, envelope, secrets, now):
        return super().verify(envelope, secrets[:1], now)


@breaks("authenticity")
class FallsOverAnOddSecret(GitHub):
    def sign(self, secret, message):
        return mac(secret.encode("ascii"), message)


@breaks("authenticity", "events")
class BelievesTheUnsigned(GitHub):
    def verify(self, envelope, secrets, now):
        why = super().verify(envelope, secrets, now)
        return "" if why == UNSIGNED else why


@breaks("authenticity")
class BelievesAnOlderSignature(GitHub):
    def verify(self, envelope, secrets, now):
        older = envelope.header("x-hub-signature").removeprefix("sha1=")
        if any(hmac.compare_digest(mac(raw(secret), envelope.body, "sha1"), older) for secret in secrets if secret):
            return ""
        return super().verify(envelope, secrets, now)


@breaks("authenticity", "events")
class TrimsTheBody(GitHub):
    def signed_part(self, envelope):
        part = super().signed_part(envelope)
        return part if isinstance(part, str) else Signed(part.given, part.message.strip())


@breaks("authenticity")
class DoesNotMindTheCase(GitHub):
    def signed_part(self, envelope):
        part = super().signed_part(envelope)
        return part if isinstance(part, str) else Signed([part.given[0].lower()], part.message)


@breaks("authenticity")
class TakesAnEmptySecret(GitHub):
    def verify(self, envelope, secrets, now):
        part = self.signed_part(envelope)
        if isinstance(part, str):
            return part
        return (
            ""
            if any(hmac.compare_digest(raw(self.sign(s, part.message)), raw(part.given[0])) for s in secrets)
            else WRONG_SIGNATURE
        )


@breaks("authenticity", "events")
class FallsOverAnOddTime(Slack):
    def signed_part(self, envelope):
        float(envelope.header("x-slack-request-timestamp"))
        return super().signed_part(envelope)


@breaks("authenticity")
class TellsTheSecret(GitHub):
    def verify(self, envelope, secrets, now):
        why = super().verify(envelope, secrets, now)
        return why and f"{why}: {secrets}"


@breaks("authenticity", "events")
class BelievesWhoKnowsTheAddress(CloudEvents):
    def verify(self, envelope, secrets, now):
        return ""


@breaks("authenticity", "events")
class KnowsNoProof(GitHub):
    """Somebody forgot to say what the signature vouches for."""

    covered = ()


@breaks("authenticity", "events")
class BelievesNothing(GitHub):
    def verify(self, envelope, secrets, now):
        return WRONG_SIGNATURE


@breaks("authenticity")
class IsInAHurry(Stripe):
    def verify(self, envelope, secrets, now):
        return super().verify(envelope, secrets, now) or ("" if abs(envelope.received_at - now) < 60 else "too late")


@breaks("authenticity", "events")
class SignsItsNameOnly(GitHub):
    def signed_part(self, envelope):
        part = super().signed_part(envelope)
        return part if isinstance(part, str) else Signed(part.given, b"github")

    def seal(self, body, secret, now):
        sent = super().seal(body, secret, now)
        return type(sent)(
            sent.source, body, {**sent.headers, self.covered[0]: "sha256=" + self.sign(secret, b"github")}
        )
