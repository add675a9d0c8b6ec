"""Runs the command line: by `python -m corral`, or as a file under `python -I -S`, which leaves sys.path without site-packages."""

import sys

if not __package__:
    # Appended: nothing there may replace a module of the standard library.
    sys.path.append(__file__.rsplit("/", 2)[0])
    while sys.argv[1:] and sys.argv[1].startswith("--path="):
        sys.path.append(sys.argv.pop(1).partition("=")[2])
    pins = []
    while sys.argv[1:] and sys.argv[1].startswith(("--HOME=", "--XDG_", "--TMPDIR=")):
        pins.append(sys.argv.pop(1))
    if pins:
        import os

        from corral.policy.user_dirs import apply_directory_options

        apply_directory_options(pins, os.environ)

from corral.apps.cli import main

sys.exit(main())
