"""Leaves: each plugs corral into one thing outside it. They import the core, and nothing imports them."""
