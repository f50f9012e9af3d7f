"""Brokers that deliver badly."""

from msgspec.structs import replace

from tests.contracts.brokers.broken.catalogue import breaks
from twiceproof.brokers.memory import MemoryBroker
from twiceproof.errors import BrokerUnavailable


class Changed(MemoryBroker):
    """Changes each delivery."""

    def receive(self, place, limit, wait):
        return [self.change(delivery) for delivery in super().receive(place, limit, wait)]


@breaks("headers_arrive_with_names_in_lower_case")
class LosesHeaders(Changed):
    def change(self, delivery):
        return replace(delivery, headers={})


@breaks("headers_arrive_with_names_in_lower_case", "a_header_that_would_be_changed_is_refused")
class ShoutsHeaders(Changed):
    """Names come in upper case, and are not found."""

    def change(self, delivery):
        return replace(delivery, headers={name.upper(): value for name, value in delivery.headers.items()})


@breaks("the_content_type_arrives")
class LosesTheContentType(Changed):
    def change(self, delivery):
        return replace(delivery, content_type="application/octet-stream")


@breaks("a_body_arrives_as_it_was_sent")
class DecodesBodies(Changed):
    def change(self, delivery):
        return replace(delivery, body=delivery.body.decode(errors="replace").encode())


@breaks("the_first_delivery_counts_as_one", "what_is_requeued_comes_again_and_counts")
class CountsFromZero(Changed):
    def change(self, delivery):
        return replace(delivery, times=delivery.times - 1)


@breaks("a_delivery_says_until_when_it_is_held")
class PromisesTooLong(Changed):
    def change(self, delivery):
        return replace(delivery, until=delivery.until + 10 * self.queues.lease)


@breaks("no_more_than_the_limit_is_delivered_at_once")
class IgnoresTheLimit(MemoryBroker):
    def receive(self, place, limit, wait):
        return super().receive(place, 100, wait)


@breaks("an_empty_queue_returns_nothing_after_the_wait")
class DoesNotWait(MemoryBroker):
    def receive(self, place, limit, wait):
        return super().receive(place, limit, 0.0)


@breaks("a_queue_that_does_not_exist_is_an_error")
class FindsNothingInNoQueue(MemoryBroker):
    """A misspelt name is an empty queue, for ever."""

    def receive(self, place, limit, wait):
        try:
            return super().receive(place, limit, wait)
        except BrokerUnavailable:
            return []


@breaks("what_one_receiver_holds_another_does_not_get")
class DeliversToAll(MemoryBroker):
    def _hand_over(self, stored, until):
        delivery = super()._hand_over(stored, until)
        stored.visible = self._clock.monotonic()
        return delivery


@breaks("what_is_not_settled_comes_again_when_its_time_is_over")
class NeverDeliversAgain(MemoryBroker):
    """What a receiver that hangs has taken is lost until somebody restarts it."""

    def _hand_over(self, stored, until):
        delivery = super()._hand_over(stored, until)
        stored.visible += 1_000_000
        return delivery


@breaks("what_is_acknowledged_never_comes_again", "what_is_rejected_comes_no_more")
class ReadsByOffset(MemoryBroker):
    """Who opens it begins at the start again, whatever was settled."""

    def __init__(self, queues=None, **more):
        super().__init__(queues, **more)
        for place, gone in self.queues.rejected.items():
            self.queues.queues[place] += gone

    def _settle_one(self, place, stored, word):
        super()._settle_one(place, stored, word)
        if stored not in self.queues.queues[place] and stored not in self.queues.rejected[place]:
            self.queues.rejected[place].append(stored)


@breaks("it_counts_what_waits_or_says_that_it_cannot")
class CountsNothing(MemoryBroker):
    def waiting(self, place):
        return 0


@breaks("what_is_found_has_a_level_and_a_next_move", "a_missing_place_is_found")
class ExaminesBadly(MemoryBroker):
    def examine(self, places=()):
        return [replace(finding, level="fine", text="Maybe") for finding in super().examine(places)]
