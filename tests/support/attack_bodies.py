"""The bodies of attacks by their names: what a command must not do to files, processes, servers, the kernel and its warden.

Each is a function that returns something true if the attack succeeded; see `attempt`.
"""

from pathlib import Path
from typing import Any

FILES = {
    "read a file outside": "return open(facts['secret']).read() == 'canary'",
    "list a directory outside": "return os.listdir(facts['outside'])",
    "see that a file exists outside": "return os.stat(facts['secret'])",
    "write a file outside": "return open(facts['secret'], 'a').write('x')",
    "create a file outside": "return open(facts['outside'] + '/new', 'x').write('x')",
    "make a directory outside": "os.mkdir(facts['outside'] + '/made')\nreturn True",
    "remove a file outside": "os.unlink(facts['secret'])\nreturn True",
    "truncate a file outside": "os.truncate(facts['secret'], 0)\nreturn True",
    "change the mode of a directory outside": "os.chmod(facts['outside'], 0o711)\nreturn True",
    "change the times of a file outside": "os.utime(facts['secret'], (1, 1))\nreturn True",
    "set an attribute of a file outside": "os.setxattr(facts['secret'], 'user.x', b'1')\nreturn True",
    "rename a file outside into the project": "os.rename(facts['secret'], 'mine')\nreturn True",
    "link a file outside into the project": "os.link(facts['secret'], 'mine')\nreturn open('mine').read() == 'canary'",
    "read through a symbolic link": "os.symlink(facts['secret'], 'link')\ntry:\n    return open('link').read() == 'canary'\nfinally:\n    os.unlink('link')",
    "write through a symbolic link": "os.symlink(facts['outside'], 'way')\ntry:\n    return open('way/new', 'x').write('x')\nfinally:\n    os.unlink('way')",
    "read through one's own root": "return open('/proc/self/root' + facts['secret']).read() == 'canary'",
    "read by climbing up": "return open('../' * 30 + facts['secret'][1:]).read() == 'canary'",
    "read through the directory of a descriptor": "fd = os.open('.', os.O_RDONLY)\nreturn open(f'/proc/self/fd/{fd}/../outside/secret').read() == 'canary'",
    "read with an absolute link in an archive": "import tarfile, io\nbuf = io.BytesIO()\nwith tarfile.open(fileobj=buf, mode='w') as t:\n    i = tarfile.TarInfo('out')\n    i.type = tarfile.SYMTYPE\n    i.linkname = facts['outside']\n    t.addfile(i)\nbuf.seek(0)\ntarfile.open(fileobj=buf).extractall('.')\ntry:\n    return open('out/secret').read() == 'canary'\nfinally:\n    os.unlink('out')",
    "read through one's own directory": "return open('/proc/self/cwd/../outside/secret').read() == 'canary'",
    "read through the root of a thread": "return open(f'/proc/thread-self/root{facts[\"secret\"]}').read() == 'canary'",
    "change into a directory outside": "os.chdir(facts['outside'])\nreturn os.listdir('.')",
    "open a directory outside without reading it": "return os.open(facts['outside'], os.O_PATH)",
    "read the target of a link outside": "return os.readlink(facts['outside'] + '/link')",
    "watch a directory outside": "fd = libc.inotify_init()\nif libc.inotify_add_watch(fd, facts['outside'].encode(), 0xfff) < 0:\n    raise OSError(ctypes.get_errno(), '')\nreturn True",
    "ask for the handle of a file outside": "handle = ctypes.create_string_buffer(struct.pack('=Ii', 128, 0) + bytes(128))\nmount = ctypes.c_int()\nif libc.name_to_handle_at(-100, facts['secret'].encode(), handle, ctypes.byref(mount), 0):\n    raise OSError(ctypes.get_errno(), '')\nreturn True",
    "make a link outside": "os.symlink('x', facts['outside'] + '/made')\nreturn True",
    "make a pipe outside": "os.mkfifo(facts['outside'] + '/made')\nreturn True",
    "make a socket outside": "socket.socket(socket.AF_UNIX).bind(facts['outside'] + '/made')\nreturn True",
    "remove a directory outside": "os.rmdir(facts['outside'] + '/empty')\nreturn True",
    "change the mode of a file outside": "os.chmod(facts['secret'], 0o600)\nreturn True",
    "change owner and group of a file outside": "os.chown(facts['secret'], os.getuid(), os.getgid())\nreturn True",
    "rename a file over one outside": "open('mine', 'w').close()\ntry:\n    os.rename('mine', facts['secret'])\n    return True\nfinally:\n    if os.path.exists('mine'):\n        os.unlink('mine')",
    "exchange a file with one outside": "open('mine', 'w').close()\ntry:\n    return call(316 if X86 else 276, -100, b'mine', -100, facts['secret'].encode(), 2) == 0\nfinally:\n    os.unlink('mine')",
    "link a file of the project outside": "open('mine', 'w').close()\ntry:\n    os.link('mine', facts['outside'] + '/made')\n    return True\nfinally:\n    os.unlink('mine')",
    "link a file outside by its descriptor": "fd = os.open(facts['secret'], os.O_PATH)\nreturn call(265 if X86 else 37, fd, b'', -100, b'mine', 0x1000) == 0 if os.getuid() == 0 else call(265 if X86 else 37, -100, b'/proc/self/fd/%d' % fd, -100, b'mine', 0x400) == 0",
    "unpack a member that climbs": "import io, tarfile\nbuf = io.BytesIO()\nwith tarfile.open(fileobj=buf, mode='w') as t:\n    t.addfile(tarfile.TarInfo('../outside/unpacked'))\nbuf.seek(0)\nsubprocess.run(['tar', 'xPf', '-'], input=buf.getvalue(), capture_output=True)\nreturn os.path.exists('../outside/unpacked') and os.path.exists('../outside/empty')",
    "unpack a member with an absolute name": "import io, tarfile\nbuf = io.BytesIO()\nwith tarfile.open(fileobj=buf, mode='w') as t:\n    t.addfile(tarfile.TarInfo(facts['outside'] + '/unpacked'))\nbuf.seek(0)\nsubprocess.run(['tar', 'xPf', '-'], input=buf.getvalue(), capture_output=True)\nreturn os.path.exists(facts['outside'] + '/unpacked') and os.path.exists(facts['outside'] + '/empty')",
    "unpack a hard link to a file outside": "import io, tarfile\nbuf = io.BytesIO()\nwith tarfile.open(fileobj=buf, mode='w') as t:\n    i = tarfile.TarInfo('out')\n    i.type = tarfile.LNKTYPE\n    i.linkname = facts['secret']\n    t.addfile(i)\nsubprocess.run(['tar', 'xPf', '-'], input=buf.getvalue(), capture_output=True)\ntry:\n    return open('out').read() == 'canary'\nfinally:\n    if os.path.lexists('out'):\n        os.unlink('out')",
    "read by a program in memory": "fd = os.memfd_create('x')\nos.write(fd, open('/bin/cat', 'rb').read())\nreturn subprocess.run([f'/proc/self/fd/{fd}', facts['secret']], pass_fds=[fd], capture_output=True).stdout == b'canary'",
    "read by a program without a path": "fd = os.memfd_create('x')\nos.write(fd, open('/bin/cat', 'rb').read())\nr, w = os.pipe()\nif os.fork() == 0:\n    os.dup2(w, 1)\n    os.execve(fd, ['cat', facts['secret']], {})\nos.close(w)\nreturn os.read(r, 10) == b'canary'",
    "load a library outside": "return ctypes.CDLL(facts['library'])",
    "load a library outside before all others": "done = subprocess.run(['true'], env={'LD_PRELOAD': facts['library'], 'LD_DEBUG': 'files'}, capture_output=True)\nreturn b'calling init: ' + facts['library'].encode() in done.stderr",
    "run a file outside": "return subprocess.run([facts['program']], capture_output=True).stdout == b'ran\\n'",
    "run a file outside through the loader": "import glob\nloader = (glob.glob('/lib64/ld-linux*') + glob.glob('/lib/ld-linux*'))[0]\nreturn subprocess.run([loader, facts['binary']], capture_output=True).stdout != b''",
    "run a file outside by a first line": "open('s', 'w').write('#!' + facts['program'] + '\\n')\nos.chmod('s', 0o755)\ntry:\n    return subprocess.run(['./s'], capture_output=True).stdout == b'ran\\n'\nfinally:\n    os.unlink('s')",
}

PROCESSES = {
    "send a signal": "os.kill(facts['pid'], signal.SIGCONT)\nreturn True",
    "send a signal by descriptor": "signal.pidfd_send_signal(os.pidfd_open(facts['pid']), signal.SIGCONT)\nreturn True",
    "read the environment": "return b'canary' in open(f'/proc/{facts[\"pid\"]}/environ', 'rb').read()",
    "see the command line": "return b'sleep' in open(f'/proc/{facts[\"pid\"]}/cmdline', 'rb').read()",
    "read the memory": "return open(f'/proc/{facts[\"pid\"]}/mem', 'rb')",
    "read a file through its root": "return os.listdir(f'/proc/{facts[\"pid\"]}/root/')",
    "trace it": "call(101 if X86 else 117, 0x4206, facts['pid'], 0, 0)\nreturn True",
    "change its limits": "resource.prlimit(facts['pid'], resource.RLIMIT_CORE, (0, 0))\nreturn True",
    "change its priority": "os.setpriority(os.PRIO_PROCESS, facts['pid'], 3)\nreturn True",
    "change its processors": "os.sched_setaffinity(facts['pid'], os.sched_getaffinity(facts['pid']))\nreturn True",
}

SERVERS = {
    "TCP over the host's loopback": "return socket.create_connection(('127.0.0.1', facts['tcp']), 20)",
    "UDP over the host's loopback": "s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\ns.settimeout(20)\ns.connect(('127.0.0.1', facts['udp']))\ns.send(b'x')\nreturn s.recv(1) == b'x'",
    "TCP by the mapped address": "return socket.create_connection(('::ffff:127.0.0.1', facts['tcp']), 1)",
    "a unix socket by path": "s = socket.socket(socket.AF_UNIX)\ns.connect(facts['socket'])\nreturn True",
    "a unix socket by abstract name": "s = socket.socket(socket.AF_UNIX)\ns.connect(chr(0) + facts['abstract'])\nreturn True",
}

KERNEL = {
    "a new user namespace": "if libc.unshare(0x10000000):\n    raise OSError(ctypes.get_errno(), '')\nreturn True",
    "a new user namespace by clone": "pid = call(56 if X86 else 220, 0x10000000 | 17, 0, 0, 0, 0)\nif pid == 0:\n    os._exit(0)\nreturn True",
    "a new user namespace by clone3": "args = struct.pack('=8Q', 0x10000000, 0, 0, 0, 17, 0, 0, 0)\npid = call(435, args, len(args))\nif pid == 0:\n    os._exit(0)\nreturn True",
    "a mount in a namespace of its own": "if libc.unshare(0x10020000) or libc.mount(b'tmpfs', b'.', b'tmpfs', 0, None):\n    raise OSError(ctypes.get_errno(), '')\nreturn True",
    "io_uring": "return call(425, 1, ctypes.create_string_buffer(120)) > 0",
    "a key in the session keyring": "return call(248 if X86 else 217, b'user', b'corral-test', b'x', 1, -3) > 0",
    "the session keyring": "return call(250 if X86 else 219, 0, -3, 0) > 0",
    "a personality that makes memory executable": "return call(135 if X86 else 92, 0x400000) >= 0",
    "a socket to the hypervisor": "return socket.socket(40, socket.SOCK_STREAM)",
    "a netlink socket of the kernel's events": "return socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 15)",
    "a netlink socket of the firewall": "return socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 12)",
    "a message queue": "name = b'/corral-test'\nfd = call(240 if X86 else 180, name[1:], 0o102, 0o600, None)\nlibc.mq_unlink(name)\nreturn fd > 0",
    "a setuid program": "open('s', 'w').close()\ntry:\n    os.chmod('s', 0o4755)\n    return os.stat('s').st_mode & stat.S_ISUID\nfinally:\n    os.unlink('s')",
    "such a program by descriptor": "fd = os.open('s', os.O_CREAT | os.O_RDWR)\ntry:\n    os.fchmod(fd, 0o4755)\n    return os.stat('s').st_mode & stat.S_ISUID\nfinally:\n    os.unlink('s')",
    "such a program as it is made": "fd = os.open('s', os.O_CREAT | os.O_RDWR, 0o4755)\ntry:\n    return os.stat('s').st_mode & stat.S_ISUID\nfinally:\n    os.unlink('s')",
    "such a program by mknod": "os.mknod('s', 0o4755 | stat.S_IFREG)\ntry:\n    return os.stat('s').st_mode & stat.S_ISUID\nfinally:\n    os.unlink('s')",
    "such a program by the newest chmod": "open('s', 'w').close()\ntry:\n    return call(452, -100, b's', 0o4755, 0) == 0\nfinally:\n    os.unlink('s')",
    "calls of another architecture": "if not X86:\n    # Only there is a second one of this kind; what stands for it is refused too.\n    return call(425, 1, ctypes.create_string_buffer(120)) > 0\ncode = bytes.fromhex('b814000000cd80c3')\nm = mmap.mmap(-1, 4096, prot=7)\nm.write(code)\nreturn ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(m)))() > 0",
    "openat2, whose flags lie in memory": "return call(437, -100, b'.', struct.pack('=3Q', os.O_RDONLY, 0, 0), 24) > 0",
    "the machine's devices and settings in /sys": "return os.listdir('/sys')",
}

AS_ROOT = {
    "read the shadow file": "return open('/etc/shadow').read()",
    "open core_pattern for writing": "return os.open('/proc/sys/kernel/core_pattern', os.O_WRONLY) > 0",
    "open the list of a control group's processes for writing": "import glob\nfound = glob.glob('/sys/fs/cgroup/**/cgroup.procs')\nreturn found and os.open(found[0], os.O_WRONLY) > 0",
    "make a device": "os.mknod('d', stat.S_IFCHR | 0o600, os.makedev(1, 3))\nos.unlink('d')\nreturn True",
    "a raw socket": "return socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)",
    "a packet socket": "return socket.socket(socket.AF_PACKET, socket.SOCK_RAW)",
    "chroot": "os.chroot('.')\nreturn True",
    "enter a namespace": "fd = os.open('/proc/self/ns/uts', os.O_RDONLY)\nreturn call(308 if X86 else 268, fd, 0) == 0",
    "a fault handler of its own": "return call(323 if X86 else 282, 0) > 0",
    "performance events": "attr = struct.pack('=IIQ', 1, 120, 0) + bytes(104)\nreturn call(298 if X86 else 241, attr, 0, -1, -1, 0) > 0",
    "type into a terminal": "ours, theirs = os.openpty()\nfcntl.ioctl(theirs, 0x5412, b'x')\nreturn True",
    "type into a terminal, with a high bit set": "ours, theirs = os.openpty()\nreturn call(16 if X86 else 29, theirs, 0x100005412, b'x') == 0",
    "become another user": "os.setuid(1)\nreturn True",
    "raise a limit": "resource.setrlimit(resource.RLIMIT_CORE, (1, 1))\nreturn True",
    "read the kernel's log": "return call(103 if X86 else 116, 10, 0, 0) > 0",
    "watch all files": "return call(300 if X86 else 262, 0, 0) > 0",
    "capabilities of a file": "open('f', 'w').close()\ntry:\n    os.setxattr('f', 'security.capability', struct.pack('=5I', 0x02000001, 1 << 21, 0, 0, 0))\n    return True\nfinally:\n    os.unlink('f')",
    "a file that cannot be removed": "fd = os.open('f', os.O_CREAT | os.O_RDWR)\ntry:\n    fcntl.ioctl(fd, 0x40086602, struct.pack('l', 0x10))\n    fcntl.ioctl(fd, 0x40086602, struct.pack('l', 0))\n    return True\nfinally:\n    os.unlink('f')",
    "a turn before all others": "os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))\nreturn True",
    "a higher priority": "os.setpriority(os.PRIO_PROCESS, 0, -5)\nreturn True",
    "set the clock": "time.clock_settime(time.CLOCK_REALTIME, time.time())\nreturn True",
    "change the machine's name": "socket.sethostname(socket.gethostname())\nreturn True",
    "load a filter into the kernel": "attr = struct.pack('=IIII', 2, 4, 4, 1) + bytes(56)\nreturn call(321 if X86 else 280, 0, attr, len(attr)) > 0",
}

WARDEN = {
    "change its limits": "resource.prlimit(os.getppid(), resource.RLIMIT_CORE, (0, 0))\nreturn True",
    "change its priority": "os.setpriority(os.PRIO_PROCESS, os.getppid(), 1)\nreturn True",
    "change its processors": "os.sched_setaffinity(os.getppid(), os.sched_getaffinity(0))\nreturn True",
    "change its scheduling": "os.sched_setscheduler(os.getppid(), os.SCHED_BATCH, os.sched_param(0))\nreturn True",
    "change its turn at the disk": "return call(251 if X86 else 30, 1, os.getppid(), 2 << 13 | 4) == 0",
    "see it in the list of processes": "return str(os.getppid()) in os.listdir('/proc')",
}

WARDEN_AS_ROOT = {
    "take its socket": "fd = os.pidfd_open(os.getppid())\nreturn any(stat.S_ISSOCK(os.fstat(call(438, fd, n, 0)).st_mode) for n in range(3, 9) if os.path.exists(f'/proc/{os.getppid()}/fd/{n}'))",
    "read its environment": "return open(f'/proc/{os.getppid()}/environ', 'rb')",
    "read its memory": "return open(f'/proc/{os.getppid()}/mem', 'rb')",
    "list its descriptors": "return os.listdir(f'/proc/{os.getppid()}/fd')",
    "trace it": "call(101 if X86 else 117, 0x4206, os.getppid(), 0, 0)\nreturn True",
}


def file_facts(outside: Path) -> dict[str, Any]:
    """Make what the attacks on files are aimed at, and return the facts for them."""
    (outside / "program").write_bytes(Path("/bin/echo").read_bytes())
    script = outside / "runs"
    script.write_text("#!/bin/sh\necho ran\n")
    script.chmod(0o755)
    binary = outside / "echo"
    binary.write_bytes(Path("/bin/echo").read_bytes())
    binary.chmod(0o755)
    (outside / "empty").mkdir()
    (outside / "link").symlink_to("secret")
    library = next(Path("/").glob("lib/*-linux-gnu/libm.so.6"), Path("/lib64/libm.so.6"))
    (outside / "library.so").write_bytes(library.read_bytes())
    return {
        "outside": str(outside),
        "secret": str(outside / "secret"),
        "program": str(script),
        "binary": str(binary),
        "library": str(outside / "library.so"),
    }
