"""Message brokers: the seam of five methods, and one file for each technology."""
