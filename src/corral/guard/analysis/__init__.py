"""What really runs: scripts, wrappers and options followed down to single commands and their effects. Depth-bounded, and runs nothing."""
