"""Reports of runs and evaluations to the CI system that corral runs in."""
