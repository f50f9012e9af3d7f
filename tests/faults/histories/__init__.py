"""Callers that do random things to few keys, simulated and real, and the histories that come of it."""
