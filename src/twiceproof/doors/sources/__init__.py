"""Senders that are known by name."""
