"""Brokers that publish badly."""

from msgspec.structs import replace

from tests.contracts.brokers.broken.catalogue import breaks
from twiceproof.brokers.base import Confirmed, Refused, Unconfirmed
from twiceproof.brokers.memory import MemoryBroker


@breaks("a_lost_answer_is_unconfirmed_and_no_refusal")
class IgnoresConfirms(MemoryBroker):
    """Sent is taken for stored."""

    def publish(self, messages, patience):
        outcomes = super().publish(messages, patience)
        return [Confirmed() if isinstance(outcome, Unconfirmed) else outcome for outcome in outcomes]


@breaks("a_lost_answer_is_unconfirmed_and_no_refusal")
class TakesDoubtForRefusal(MemoryBroker):
    """A message that may be there is reported as not there."""

    def publish(self, messages, patience):
        outcomes = super().publish(messages, patience)
        return [Refused(outcome.why) if isinstance(outcome, Unconfirmed) else outcome for outcome in outcomes]


@breaks("a_message_that_no_queue_takes_is_refused", "each_message_of_a_batch_has_its_own_outcome")
class IgnoresReturns(MemoryBroker):
    """What no queue took is confirmed, as RabbitMQ does without `mandatory`."""

    def publish(self, messages, patience):
        outcomes = super().publish(messages, patience)
        return [Confirmed() if isinstance(outcome, Refused) else outcome for outcome in outcomes]


@breaks("each_message_of_a_batch_has_its_own_outcome")
class JudgesTheWholeBatch(MemoryBroker):
    """One refusal is that of all."""

    def publish(self, messages, patience):
        outcomes = super().publish(messages, patience)
        refused = [outcome for outcome in outcomes if isinstance(outcome, Refused)]
        return [refused[0] for _ in outcomes] if refused else outcomes


@breaks("one_key_to_two_places_has_two_outcomes")
class FindsOutcomesByKey(MemoryBroker):
    """The outcome of the last message with a key is taken for that of all."""

    def publish(self, messages, patience):
        outcomes = super().publish(messages, patience)
        by_key = {message.key: outcome for message, outcome in zip(messages, outcomes, strict=True)}
        return [by_key[message.key] for message in messages]


@breaks(
    "nothing_passes_a_refused_message_of_its_order_key",
    "nothing_passes_an_invalid_message_of_its_order_key",
    "a_refused_message_of_an_order_key_keeps_its_place",
)
class LosesOrderOnRetry(MemoryBroker):
    """What follows a refused message is published all the same."""

    def publish(self, messages, patience):
        return [self._publish_one(message) for message in messages]


@breaks("messages_of_an_order_key_arrive_in_order")
class PublishesBackwards(MemoryBroker):
    def publish(self, messages, patience):
        return super().publish(messages[::-1], patience)[::-1]


@breaks("a_confirmed_message_is_delivered", "the_key_arrives_as_it_was_sent", "a_long_key_is_the_same_at_each_attempt")
class MakesItsOwnKeys(MemoryBroker):
    """Each attempt has a key of its own, so that no receiver can find the duplicate."""

    def _publish_one(self, message):
        fresh = f"{message.key}-{self.queues.last}" if message.key else ""
        return super()._publish_one(replace(message, key=fresh))


@breaks("a_repeated_key_is_one_delivery_where_keys_are_kept", "a_repeated_key_is_known_to_another_connection")
class ForgetsKeys(MemoryBroker):
    """It says that it keeps keys, and does not."""

    def _known(self, message):
        return None


@breaks("a_header_that_would_be_changed_is_refused")
class TrimsHeaders(MemoryBroker):
    """A header with blanks is changed on its way instead of refused."""

    def _publish_one(self, message):
        headers = {
            name.replace(" ", "") or "none": value.strip().replace("\r\n", "")
            for name, value in message.headers.items()
        }
        return super()._publish_one(replace(message, headers=headers))


@breaks("a_message_without_a_key_is_refused")
class TakesMessagesWithoutKey(MemoryBroker):
    def _publish_one(self, message):
        return super()._publish_one(replace(message, key=message.key or "none"))


@breaks("publishing_nothing_has_no_outcomes")
class FailsOnNothing(MemoryBroker):
    def publish(self, messages, patience):
        return super().publish(messages, patience) if messages else [Refused("nothing to publish")]


@breaks("a_large_batch_is_confirmed_and_delivered")
class DropsWhatExceedsItsWindow(MemoryBroker):
    """It confirms all of a batch, of which it sent what fits."""

    def publish(self, messages, patience):
        outcomes = super().publish(messages[:500], patience)
        return [*outcomes, *(Confirmed() for _ in messages[500:])]


@breaks("nothing_passes_an_unconfirmed_message_of_its_order_key")
class PassesTheUnconfirmed(MemoryBroker):
    """All of a lane is under way at once: the first is lost with its answer, the second arrives."""

    def publish(self, messages, patience):
        if not self.lose_answers:
            return super().publish(messages, patience)
        return [Unconfirmed("lost"), *(self._publish_one(message) for message in messages[1:])]


@breaks("after_a_lost_answer_it_publishes_again")
class StaysBroken(MemoryBroker):
    """A connection that lost an answer is used for ever."""

    broken = False

    def publish(self, messages, patience):
        self.broken = self.broken or self.lose_answers > 0
        return [Unconfirmed("broken") for _ in messages] if self.broken else super().publish(messages, patience)


@breaks("two_keys_with_the_same_body_are_two_messages")
class DeduplicatesByBody(MemoryBroker):
    """As SQS does with ContentBasedDeduplication: a second order for the same thing is dropped."""

    def _known(self, message):
        return super()._known(message) or super()._known(replace(message, key=message.body.hex() or "-"))

    def _store(self, message):
        super()._store(message)
        until = self._clock.monotonic() + self.queues.dedupe
        self.queues.seen[message.place, message.body.hex() or "-"] = (until, self.queues.last)
        return self.queues.last


@breaks("a_body_arrives_as_it_was_sent")
class RefusesEmptyBodies(MemoryBroker):
    """As SQS does, which takes no message without a body."""

    def _publish_one(self, message):
        return super()._publish_one(message) if message.body else Refused("no body")


@breaks("a_body_arrives_as_it_was_sent")
class TakesTextAlone(MemoryBroker):
    """Bytes that are no text are refused, instead of encoded."""

    def _publish_one(self, message):
        return super()._publish_one(message) if b"\x00" not in message.body else Refused("no text")


@breaks("nothing_passes_a_refused_message_of_its_order_key", "a_refused_message_of_an_order_key_keeps_its_place")
class PublishesAnOrderKeyInOneBatch(MemoryBroker):
    """A batch of the broker's own: one message of it is refused, and those after it are stored."""

    def publish(self, messages, patience):
        fit = super().publish([message for message in messages if self.queues.has(message.place)], patience)
        stored = iter(fit)
        return [next(stored) if self.queues.has(message.place) else Refused("no queue") for message in messages]
