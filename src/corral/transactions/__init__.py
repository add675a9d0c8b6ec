"""Runs commands on an overlay of the project, shows their changes, applies and undoes them."""
