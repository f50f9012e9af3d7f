"""Durable runs whose steps say how they may be repeated."""
