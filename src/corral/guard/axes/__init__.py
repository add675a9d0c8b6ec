"""The four axes. Each judges the commands of one call and returns findings."""
