"""Runs commands of the user's programs, such as gh and kubectl, outside for a sandbox: those of broker.toml that a call was granted."""
