"""The eval harness: runs tasks, each in its own temporary project, and compares the outcome with their expectations."""
