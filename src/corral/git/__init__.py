"""Keeps the user's git directories free of bytes that a command wrote. The host re-makes what crosses."""
