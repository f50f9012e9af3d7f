"""Runs over HTTP: start them once, look at them, and have a word in what becomes of them."""
