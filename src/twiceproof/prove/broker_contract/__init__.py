"""The contract that every broker fulfils, as tests. Subclass it, return your broker, and run pytest:

    from twiceproof.prove.broker_contract import BrokerContract

    class TestMyBroker(BrokerContract):
        place, nowhere = "orders", "no-such-queue"

        def make_broker(self):
            ...                         # create the queue, empty, and return a broker

        def open_again(self):
            ...                         # another broker on the same queue

        def lose_answers(self):
            ...                         # from now on requests arrive, and no answer comes back

        def heal(self):
            ...                         # answers come again

A broker that delivers unsettled messages again after a time, to any receiver, uses `LeasedBrokerContract`, which adds
tests (`lease`). One that keeps a single number for settled messages, as Kafka does, uses `OrderedBrokerContract`: the
same promises, except that a message settled after an open one may come again after a restart.
"""

from __future__ import annotations

import pytest

# Before the modules are imported, so that a failing assertion shows its values.
pytest.register_assert_rewrite(
    *(f"{__name__}.{module}" for module in ("case", "deliveries", "publications", "settlements"))
)

from .deliveries import BrokerLifecycle, Contents, Deliveries  # noqa: E402
from .publications import OrderKeys, Publications, RepeatedKeys  # noqa: E402
from .settlements import Leased, SettledInOrder, SettledOneByOne, Settlements  # noqa: E402

__all__ = ["BrokerContract", "LeasedBrokerContract", "OrderedBrokerContract"]


class _Common(Publications, OrderKeys, RepeatedKeys, Contents, Deliveries, Settlements, BrokerLifecycle):
    """What holds however settlements are kept."""


class BrokerContract(SettledOneByOne, _Common):
    """What every broker guarantees. A capability may add tests to it, never skip one."""


class LeasedBrokerContract(Leased, BrokerContract):
    """In addition, the guarantees of a broker that delivers again after a time, while the first receiver lives."""


class OrderedBrokerContract(SettledInOrder, _Common):
    """The guarantees of a broker that settles in order. Two tests of `BrokerContract` are replaced by four, which allow
    one thing more: after a restart, messages that were settled after an open one may come again.
    """
