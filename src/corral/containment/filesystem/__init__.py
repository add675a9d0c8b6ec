"""The file system that a sandbox sees, and the protected paths in it."""
