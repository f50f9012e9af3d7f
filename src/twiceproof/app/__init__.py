"""The app: opens the store, wires its services, closes them."""
