"""Benchmarks that compare corral with a bare subprocess, in the same process and at the same time."""
