"""The HTTP server: webhooks, claims, runs, callbacks, approvals, reviews and monitoring."""
