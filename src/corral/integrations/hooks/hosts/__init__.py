"""One module for each agent host: its payloads and its answers."""
