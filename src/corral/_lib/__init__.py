"""Small private tools. Nothing here knows what corral is for."""
