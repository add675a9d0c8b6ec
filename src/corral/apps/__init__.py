"""Programs on top of the library."""
