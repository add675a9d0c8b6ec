"""Kernel interfaces: system calls, namespaces, mounts, Landlock, seccomp, cgroups."""
