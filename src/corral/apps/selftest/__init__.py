"""Attacks on the sandbox that this machine gives, each shown to be one by what it does uncontained to a victim made for it."""
