"""Processes that carry out what is due."""
