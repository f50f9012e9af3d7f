"""The plays' own ledgers: one each, made before it and gone after it."""
