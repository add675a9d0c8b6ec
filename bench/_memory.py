"""Reads the peak memory of a process."""

from pathlib import Path


def peak_mib(process: int) -> float:
    """Return a process's peak resident memory in MiB, or 0 if the process has ended."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM")), 0.0)
