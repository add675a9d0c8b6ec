"""The raw tables of the rules, read once for all test files."""

from corral.guard.rules.compiler import read_tables

TABLES, ROWS = read_tables()
