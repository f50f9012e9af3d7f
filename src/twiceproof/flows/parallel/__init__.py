"""Concurrent work in a flow: gather, batches with state per item; and undoing duplicates that are found later."""
