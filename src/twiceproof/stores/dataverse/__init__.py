"""Records as rows of a Dataverse table. Checked against our simulator, not against the service."""
