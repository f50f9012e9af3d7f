"""How many runs at once, and how many in a time."""
