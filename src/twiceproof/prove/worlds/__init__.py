"""The outside, as it is observed: never asked of the ledger."""
