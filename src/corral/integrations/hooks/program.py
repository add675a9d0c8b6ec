"""The script that hosts run for every tool call of an agent: `python -I -S program.py HOST` plus directories.

Installed hooks name this file, so it keeps its path. Python compiles a script each time it runs, so this one is short; the
work is in `respond`.
"""

import posix
import sys

if __name__ == "__main__":
    status = 2  # most hosts run the call after exit code 1, which is Python's own for a crash
    try:
        # First, so that corral's own modules load the fast way. Only this directory, which is ours, is on the path.
        sys.path.insert(0, f"{__file__.rsplit('/', 3)[0]}/_lib")
        import fast_import  # type: ignore[import-not-found]

        # Under -I -S neither corral's own directory nor site-packages is on the path. They go to its end, so that no module
        # in them replaces one of the standard library.
        sys.path[:] = [*sys.path[1:], __file__.rsplit("/", 4)[0], *[word for word in sys.argv[2:] if word[:1] == "/"]]
        fast_import.begin()
        from corral.integrations.hooks.session_client import ask_session

        given, begun = ask_session(sys.argv[1:])
        if given is None:
            from corral.integrations.hooks.respond import main

            given = main(sys.argv[1:], begun)
        status = given
    except BaseException as error:  # noqa: BLE001  whatever happens, the call is refused
        text = f"corral's installation is incomplete ({type(error).__name__}: {error}), so the call is refused. Reinstall it.\n"
        posix.write(2, text.encode("utf-8", "backslashreplace"))
    finally:
        # Exit at once, even if the lines above raise: the answer is written, and there is nothing to clean up.
        posix._exit(status)
