"""The app: opens the store, wires the parts, closes them."""
