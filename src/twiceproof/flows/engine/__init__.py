"""Carries out a run, step by step."""
