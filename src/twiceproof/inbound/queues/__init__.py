"""Consumers of queues: a delivery becomes an envelope, is admitted like a webhook's, and then settled."""
