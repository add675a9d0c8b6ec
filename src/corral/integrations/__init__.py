"""Connections of corral to other software. They import the core, and nothing in the core imports them."""
