"""Spans and metrics."""
