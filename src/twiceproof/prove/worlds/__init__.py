"""Worlds: the outside as it is observed, independently of the ledger."""
