"""The host side of one command: launch, pool, driver, handle, streams, capture."""
