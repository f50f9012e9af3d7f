"""A broker that settles in order, as Kafka does, and broken ones of its kind."""

from tests.contracts.brokers.broken.catalogue import breaks
from twiceproof.brokers.base import Ack, Reject
from twiceproof.brokers.memory import MemoryBroker
from twiceproof.prove.broker_contract import OrderedBrokerContract

NEVER = 1e9


class OrderedBroker(MemoryBroker):
    """Healthy: what is settled behind an open delivery is remembered by this connection alone."""

    def __init__(self, queues=None, **more):
        super().__init__(queues, **more)
        self._settled = set()

    def _settle_one(self, place, stored, word):
        if not isinstance(word, Ack | Reject):
            super()._settle_one(place, stored, word)
            return
        stored.holder, stored.visible = None, NEVER
        self._held.pop(stored, None)
        self._settled.add(stored)
        self._commit(self.queues.queues[place])

    def _commit(self, queue):
        while queue and queue[0] in self._settled:
            queue.pop(0)

    def close(self):
        for stored in self._settled:
            stored.visible = self._clock.monotonic()
        self._settled = set()
        super().close()


@breaks("an_acknowledgement_behind_open_deliveries_settles_none_of_them", contract=OrderedBrokerContract)
class CommitsPastTheOpen(OrderedBroker):
    """The next success commits past the one that failed."""

    def _commit(self, queue):
        last = max((at for at, stored in enumerate(queue) if stored in self._settled), default=-1)
        del queue[: last + 1]


@breaks("what_was_settled_early_is_kept_once_those_before_it_are", contract=OrderedBrokerContract)
class CommitsOneAtATime(OrderedBroker):
    """What was settled early is forgotten: the number moves by one, and stays there."""

    def _commit(self, queue):
        del queue[: 1 if queue and queue[0] in self._settled else 0]


@breaks("what_is_settled_in_order_never_comes_again", contract=OrderedBrokerContract)
class CommitsWhenAllIsSettled(OrderedBroker):
    """One open delivery keeps the number where it was, also below what is before it."""

    def _commit(self, queue):
        if all(stored in self._settled for stored in queue):
            queue.clear()


@breaks("each_delivery_has_the_effect_of_its_own_word", contract=OrderedBrokerContract)
class GoesBackForOne(OrderedBroker):
    """To deliver one again, it goes back to its number, and delivers all behind it again."""

    def _settle_one(self, place, stored, word):
        super()._settle_one(place, stored, word)
        if not isinstance(word, Ack | Reject):
            for other in self._settled:
                other.visible = 0.0

    def settle(self, settlements):
        super().settle(sorted(settlements, key=lambda pair: not isinstance(pair[1], Ack | Reject)))
