"""The contract that every store keeps, as tests. Subclass it, give it your store, and run pytest:

    from twiceproof.prove.store_contract import StoreContract

    class TestMyStore(StoreContract):
        def make_store(self):
            return GroupedStore(MyEngine(...))      # fresh and empty

        def advance(self, seconds):
            ...                                     # move the store's own clock, also backwards

A store whose data outlives the object takes `DurableStoreContract`, which adds tests (`open_again`).
"""

import pytest

# Before the modules are imported: a failing assertion is to say what it found.
pytest.register_assert_rewrite(
    *(
        f"{__name__}.{module}"
        for module in (
            "asking", "batches", "case", "checks", "due", "durable", "fences", "hidden", "inserts", "leases",
            "life", "lost", "places", "races", "reads", "refusals", "removes", "replaces", "scans",
        )
    )
)  # fmt: skip

from .contract import DurableStoreContract, StoreContract  # noqa: E402

__all__ = ["DurableStoreContract", "StoreContract"]
