"""A shell that lasts: one bash in one warden, which keeps its directory, variables, functions and jobs from call to call."""
