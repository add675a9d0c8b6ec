"""What holds a command: a keeper that outlives no host, and wardens that each run one command at a time."""
