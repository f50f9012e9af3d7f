"""Records in a SQLite file."""
