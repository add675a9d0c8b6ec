"""Finds out what a call would run: follows scripts, wrappers and options down to single commands and their effects. Runs nothing."""
