"""Runs the processes of a sandbox: keeper, wardens, bubblewrap and commands."""
