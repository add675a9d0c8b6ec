"""Small private tools that know nothing of corral's domain."""
