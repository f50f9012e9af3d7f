"""Approvals over HTTP: a page that shows, and a form on it that decides."""
