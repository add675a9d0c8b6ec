"""corral as a hook of coding agents: it checks every tool call of an agent before the agent's host runs it."""
