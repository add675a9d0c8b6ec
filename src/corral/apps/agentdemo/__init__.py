"""`corral demo agent`: mini-swe-agent mends a small repository through gates, guard, warden, spans and log. All of it is thrown away."""
