"""The reference pages, made from the code: `python -m tools.reference` renews them."""
