"""The outbox: messages that are written with the work they tell of, and published by a relay."""
