"""The server: doors over HTTP."""
