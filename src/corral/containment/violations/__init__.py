"""What the kernel stopped, and which grant would have allowed it."""
