"""The claim service and approvals, as used by the routes."""
