"""What this machine gives to hold commands with: every layer tried, and what each that is missing would take."""
