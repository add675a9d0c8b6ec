"""The rule tables, their compiled file, and what reads and writes them."""
