"""The description at /openapi.json, made from the routes."""
