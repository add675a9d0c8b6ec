"""The network of a sandbox: the proxy, and published ports."""
