"""Measures twiceproof beside the raw stores and beside a peer, in one run. `python -m bench`, or `make bench`."""
