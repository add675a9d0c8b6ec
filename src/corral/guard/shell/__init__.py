"""Parses shell text into a syntax tree and expands the tree's nodes into words."""
