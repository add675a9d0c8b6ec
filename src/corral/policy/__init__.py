"""What the user allows: settings, files, trust, approvals, grants."""
