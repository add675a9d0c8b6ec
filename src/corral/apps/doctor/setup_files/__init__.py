"""Prints the least set-up with which containers and CI jobs have all layers. Each file says what it opens and why."""
