"""Confines commands by the kernel: a keeper per sandbox starts wardens, and each warden runs one command at a time."""
