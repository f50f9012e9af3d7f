"""Reconciliation: what the ledger and the source of truth disagree about."""
