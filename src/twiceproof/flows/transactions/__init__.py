"""Steps whose effect and entry are in one database transaction."""
