"""Learns which registries the package managers of a user are configured for."""
