"""Workers: processes that fetch due records and carry them out."""
