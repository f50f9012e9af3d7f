"""Several things at once: gatherings, batches with state per item, and duplicates found later."""
