"""How much memory a process has ever had at once."""

from pathlib import Path


def peak_mib(process: int) -> float:
    """Return a process's peak resident memory in MiB; 0 when it is gone."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM")), 0.0)
