"""Brokers that settle badly, or close badly."""

from tests.contracts.brokers.broken.catalogue import breaks
from twiceproof.brokers.base import Ack, Extend, Reject, Requeue
from twiceproof.brokers.memory import MemoryBroker


@breaks("what_is_acknowledged_never_comes_again", "what_one_receiver_acknowledged_another_never_gets")
class LosesAcknowledgements(MemoryBroker):
    def _settle_one(self, place, stored, word):
        if not isinstance(word, Ack):
            super()._settle_one(place, stored, word)


@breaks("an_acknowledgement_settles_no_other_delivery")
class AcknowledgesMultiple(MemoryBroker):
    """An acknowledgement settles all deliveries before it, too: the failed one is lost with the next success."""

    def _settle_one(self, place, stored, word):
        if isinstance(word, Ack):
            earlier = [other for other in self.queues.queues[place] if other.sequence <= stored.sequence]
            for other in earlier:
                super()._settle_one(place, other, word)
        else:
            super()._settle_one(place, stored, word)


@breaks("what_was_not_settled_comes_again_after_a_close", "what_is_not_settled_comes_again_when_its_time_is_over")
class AcknowledgesOnReceipt(MemoryBroker):
    """What is delivered is gone, before anybody has worked on it."""

    def receive(self, place, limit, wait):
        deliveries = super().receive(place, limit, wait)
        super().settle([(delivery, Ack()) for delivery in deliveries])
        return deliveries


@breaks("what_is_requeued_comes_again_and_counts")
class DropsWhatIsRequeued(MemoryBroker):
    def _settle_one(self, place, stored, word):
        super()._settle_one(place, stored, Ack() if isinstance(word, Requeue) else word)


@breaks("what_is_requeued_for_later_comes_no_earlier", "what_waits_for_its_time_lets_others_pass")
class RequeuesWithoutDelay(MemoryBroker):
    def _settle_one(self, place, stored, word):
        super()._settle_one(place, stored, Requeue() if isinstance(word, Requeue) else word)


@breaks("what_is_requeued_comes_again_and_counts")
class CountsAnew(MemoryBroker):
    """What is requeued is a new message: nobody sees how often it was tried."""

    def _settle_one(self, place, stored, word):
        super()._settle_one(place, stored, word)
        stored.times = 0 if isinstance(word, Requeue) else stored.times


@breaks("what_is_rejected_comes_no_more")
class RequeuesWhatIsRejected(MemoryBroker):
    def _settle_one(self, place, stored, word):
        super()._settle_one(place, stored, Requeue() if isinstance(word, Reject) else word)


@breaks("each_delivery_is_settled_by_its_own_word")
class SettlesAllByTheFirstWord(MemoryBroker):
    def settle(self, settlements):
        super().settle([(delivery, settlements[0][1]) for delivery, _ in settlements])


@breaks(
    "a_late_settlement_does_not_settle_the_next_delivery",
    "a_settlement_after_the_close_does_nothing",
    "what_waits_for_its_time_is_settled_already",
)
class ForgetsWhoHolds(MemoryBroker):
    """A settlement that comes late settles the delivery of another."""

    def settle(self, settlements):
        for delivery, word in settlements:
            if delivery.tag[0] in self.queues.queues[delivery.place]:
                self._settle_one(delivery.place, delivery.tag[0], word)


@breaks("settling_twice_harms_nothing")
class FailsOnSecondSettlement(MemoryBroker):
    def settle(self, settlements):
        for delivery, _ in settlements:
            assert delivery.tag[0].holder is delivery.tag[1]
        super().settle(settlements)


@breaks("what_is_extended_is_held_for_longer", "what_was_extended_comes_again_in_the_end")
class IgnoresExtensions(MemoryBroker):
    def _settle_one(self, place, stored, word):
        if not isinstance(word, Extend):
            super()._settle_one(place, stored, word)


@breaks("what_was_extended_comes_again_in_the_end")
class ExtendsForEver(MemoryBroker):
    def _settle_one(self, place, stored, word):
        super()._settle_one(place, stored, Extend(1e9) if isinstance(word, Extend) else word)


@breaks("what_was_extended_comes_again_in_the_end")
class RoundsTimesDown(MemoryBroker):
    """The broker takes whole seconds: rounded down, a delivery comes again while work on it goes on."""

    def _settle_one(self, place, stored, word):
        super()._settle_one(place, stored, Extend(float(int(word.seconds))) if isinstance(word, Extend) else word)


@breaks("what_was_not_settled_comes_again_after_a_close", "what_waited_for_its_time_comes_again_after_a_close")
class DropsOnClose(MemoryBroker):
    def settle(self, settlements):
        super().settle(settlements)
        self.waiting = {delivery.tag[0] for delivery, word in settlements if isinstance(word, Requeue)}

    def close(self):
        for queue in self.queues.queues.values():
            queue[:] = [stored for stored in queue if stored not in {*self._held, *getattr(self, "waiting", ())}]
        super().close()


@breaks("what_was_confirmed_is_there_for_the_next_connection")
class KeepsMessagesInTheConnection(MemoryBroker):
    def close(self):
        self.queues.queues.clear()


@breaks("closing_twice_is_closing_once", "a_broker_that_was_never_used_can_be_closed")
class FailsToClose(MemoryBroker):
    def close(self):
        self._held.popitem()
        super().close()


@breaks("closing_on_a_silent_network_takes_seconds")
class HangsOnClose(MemoryBroker):
    """It waits for an answer that does not come; here, for as long as the test has patience."""

    def close(self):
        super().close()
        if self.lose_answers:
            self._clock.sleep(10.1)
