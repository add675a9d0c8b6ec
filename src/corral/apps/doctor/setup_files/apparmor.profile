# AppArmor profiles for corral. Load them on the machine itself, not in a container. They need AppArmor 4.0, as in Ubuntu 24.04.
#
#   corral doctor --emit launcher | sudo install -D -m 755 /dev/stdin %LAUNCHER%
#   corral doctor --emit apparmor | sudo tee /etc/apparmor.d/corral
#   sudo apparmor_parser -r /etc/apparmor.d/corral
#   corral doctor
#
# Remove the profile that you do not need.

abi <abi/4.0>,
include <tunables/global>

# Where kernel.apparmor_restrict_unprivileged_userns is 1, only programs with a profile get working user namespaces. This
# profile is for one file that root owns, which does nothing but start corral's keeper. Other Python programs, and corral's
# own command line, keep the restriction.
profile corral-keeper %LAUNCHER% flags=(attach_disconnected, mediate_deleted) {
  # Opens: a user namespace. All other namespaces are made in it.
  userns,
  # Opens: capabilities, which the keeper has only in its own user namespace: the file is not setuid. Commands have none.
  capability,
  # Opens: mounts in the sandbox's own mount namespace, and its own root directory.
  mount,
  remount,
  umount,
  pivot_root,

  # As without a profile: the keeper and the commands that it starts keep this profile. corral confines the commands by mounts,
  # Landlock and seccomp, which are stricter than rules for all commands could be.
  file,
  network,
  unix,
  mqueue,
  signal,
  ptrace (readby, tracedby),
  ptrace (read, trace) peer=corral-keeper,

  # Closed even for root.
  deny @{PROC}/sysrq-trigger rwklx,
  deny @{PROC}/kcore rwklx,
  deny /sys/firmware/** rwklx,
  deny /sys/kernel/security/** wklx,
}

# For a whole container in which corral runs: docker run --security-opt apparmor=corral-container.
# It is Docker's default profile (profiles/apparmor/template.go of Docker Engine, Apache License 2.0, Copyright the Moby authors)
# without its rule `deny mount`.
profile corral-container flags=(attach_disconnected, mediate_deleted) {
  # Opens: user namespaces, and mounts in them. A container without capabilities cannot mount anything outside of one.
  userns,
  mount,
  remount,
  pivot_root,

  # As in Docker's default profile.
  network,
  unix,
  mqueue,
  capability,
  file,
  umount,
  signal (receive) peer=unconfined,
  signal (receive) peer=runc,
  signal (receive) peer=crun,
  signal (send, receive) peer=corral-container,
  ptrace (trace, read, tracedby, readby) peer=corral-container,

  deny @{PROC}/* w,
  deny @{PROC}/{[^1-9],[^1-9][^0-9],[^1-9s][^0-9y][^0-9s],[^1-9][^0-9][^0-9][^0-9]*}/** w,
  deny @{PROC}/sys/[^k]** w,
  deny @{PROC}/sys/kernel/{?,??,[^s][^h][^m]**} w,
  deny @{PROC}/sysrq-trigger rwklx,
  deny @{PROC}/kcore rwklx,

  deny /sys/[^f]*/** wklx,
  deny /sys/f[^s]*/** wklx,
  deny /sys/fs/[^c]*/** wklx,
  deny /sys/fs/c[^g]*/** wklx,
  deny /sys/fs/cg[^r]*/** wklx,
  deny /sys/firmware/** rwklx,
  deny /sys/kernel/security/** rwklx,
}
