"""Serves what a sandbox may ask of the host: git transport, commands, signing, package registries."""
