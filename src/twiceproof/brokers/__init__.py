"""Message brokers: the seam of four methods, and one file for each technology."""
