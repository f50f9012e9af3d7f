"""Records in Azure Table Storage."""
