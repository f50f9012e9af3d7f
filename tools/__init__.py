"""What keeps the repository true to itself: pages made from code, and the site made from pages."""
