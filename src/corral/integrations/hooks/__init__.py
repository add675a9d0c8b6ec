"""Hooks of coding agents: one program, one verdict, and for each host what it says and how it is answered."""
