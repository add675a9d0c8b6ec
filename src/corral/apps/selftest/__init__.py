"""Attacks the sandbox of this machine. Each attack is first shown to work outside the sandbox, on a target made for it."""
