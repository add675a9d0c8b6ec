"""Spans and metrics of runs."""
