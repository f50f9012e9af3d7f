"""Effects on other systems: performing them, and checking whether they happened."""
