"""The records that pass between rooms: calls, verdicts, results, errors."""
