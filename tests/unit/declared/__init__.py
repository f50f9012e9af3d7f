"""Flows in files."""
