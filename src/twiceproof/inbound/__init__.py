"""Where events come in."""
