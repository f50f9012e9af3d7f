"""The outbox: messages written in the same commit as the work that they report, and published later by a relay."""
