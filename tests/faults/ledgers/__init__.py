"""Ledgers written by each release, kept for ever: a folder for each version, with a file for each store.

python -m tests.faults.ledgers      writes the folder of this version. Only before it is released: afterwards it stays.
"""
