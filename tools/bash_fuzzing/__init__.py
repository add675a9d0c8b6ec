"""Parts of tools/fuzz_bash.py: the grammar of scripts, the namespace they run in, and the reduction of holes."""
