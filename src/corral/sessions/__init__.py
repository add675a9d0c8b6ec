"""Sessions: a resident service that holds one sandbox for an agent's many calls, and its client."""
