"""What is measured: ours, the raw stores, and a peer."""
