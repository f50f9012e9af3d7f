"""Inbound events: webhook sources, verification, admission and dead letters."""
