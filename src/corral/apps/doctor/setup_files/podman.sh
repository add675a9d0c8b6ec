#!/bin/sh
# `podman run` for a container in which corral has all layers: sh podman-corral.sh IMAGE COMMAND
#
# Podman's default seccomp profile already has the system calls that corral needs, so it stays in force.
#
# Opens: the parts of /proc that Podman covers. The kernel mounts a /proc for a sandbox only where nothing covers the one outside.
#   The files below them belong to root, so the container runs as another user, who cannot become root. /sys stays covered.
# Closes: all capabilities, and programs that raise privileges (sudo, su).
#
# On a machine with AppArmor, and as root, Podman adds a profile that forbids mounts. Load `corral doctor --emit apparmor`, and
# add: --security-opt apparmor=corral-container. Machines with SELinux were not tested.
exec podman run \
  --security-opt 'unmask=/proc/*' \
  --security-opt no-new-privileges \
  --cap-drop all \
  --user 1000:1000 \
  "$@"
