"""What the sandbox sees of the file system, and what is protected in it."""
