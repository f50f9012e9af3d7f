"""The site, made of the pages: `python -m tools.website` builds it."""
