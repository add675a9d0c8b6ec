"""Finds every command that a call could run, through scripts, wrappers and options, and the effects of each. Runs nothing."""
