"""Checks what this machine offers to contain commands: tries every layer, and shows how to get a missing one."""
