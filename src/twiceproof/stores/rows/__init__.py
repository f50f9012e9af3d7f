"""Shared by stores without transactions over a whole database: rows in lanes, changed by compare-and-set."""
