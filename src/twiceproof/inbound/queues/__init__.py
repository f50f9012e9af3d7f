"""Consumers of queues: a delivery becomes an envelope, is admitted as a webhook's is, and then settled."""
