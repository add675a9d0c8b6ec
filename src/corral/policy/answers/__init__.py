"""Stores the answers of the user, and the refusals that wait for one."""
