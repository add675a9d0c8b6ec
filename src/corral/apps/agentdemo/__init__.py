"""`corral demo agent`: mini-swe-agent fixes a temporary repository, with gates, a sandbox, spans and an audit log."""
