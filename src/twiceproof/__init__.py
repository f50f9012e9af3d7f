"""Twiceproof: run it twice, it happens once."""
