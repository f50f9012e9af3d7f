"""Tests of Twiceproof."""
