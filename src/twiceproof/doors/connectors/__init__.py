"""Files that no-code tools import, so that nobody has to build requests by hand."""
