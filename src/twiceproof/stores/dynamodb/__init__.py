"""Records in an Amazon DynamoDB table."""
