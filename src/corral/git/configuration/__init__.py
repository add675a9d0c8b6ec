"""Git settings that cross the border of the sandbox: the user's for commands, and those of commands for the user."""
