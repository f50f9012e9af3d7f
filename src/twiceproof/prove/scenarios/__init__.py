"""Scenarios: a user's own flow is run in private, killed, paused and repeated, and compared with one clean run."""
