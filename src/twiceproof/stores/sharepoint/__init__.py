"""Records as items of a SharePoint list. Checked against our simulator, not against the service."""
