"""The user's own database connections, each driver behind the same few words."""
