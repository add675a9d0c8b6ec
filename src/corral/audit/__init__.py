"""The audit log: writing, querying, redacting."""
