"""What corral costs, measured against the bare thing in the same process and the same minute."""
