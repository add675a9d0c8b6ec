"""The processes of a sandbox: keeper, warden, bubblewrap, and what they start."""
