"""Writes the user's own policy file, and proposes what to write there."""
