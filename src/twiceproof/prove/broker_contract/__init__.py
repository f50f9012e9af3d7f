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

A broker that delivers again what is not settled within a time, to whoever asks, takes `LeasedBrokerContract`, which
adds tests (`lease`).
"""

from __future__ import annotations

import pytest

# Before the modules are imported, so that a failing assertion shows its values.
pytest.register_assert_rewrite(
    *(f"{__name__}.{module}" for module in ("case", "deliveries", "publications", "settlements"))
)

from .deliveries import BrokerLifecycle, Contents, Deliveries  # noqa: E402
from .publications import OrderKeys, Publications, RepeatedKeys  # noqa: E402
from .settlements import Leased, Settlements  # noqa: E402

__all__ = ["BrokerContract", "LeasedBrokerContract"]


class BrokerContract(Publications, OrderKeys, RepeatedKeys, Contents, Deliveries, Settlements, BrokerLifecycle):
    """What every broker guarantees. A capability may add tests to it, never skip one."""


class LeasedBrokerContract(Leased, BrokerContract):
    """In addition, what a broker guarantees that delivers again after a time, while the first receiver lives."""
