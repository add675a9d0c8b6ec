"""Reports refusals of the kernel, and the grants that would have allowed them."""
