"""Grants of hosts, of single requests and of the refs of a push: parsed and matched, without any connection."""
