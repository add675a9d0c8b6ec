"""The program of a session's service: runs its calls as `corral run` does."""
