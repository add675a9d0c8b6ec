"""Asks the user on a terminal, and answers the questions of `corral run` and other verbs."""
