"""The dashboard: pages made on the server, which work without scripts; small scripts that only change text."""
