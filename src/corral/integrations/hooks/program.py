"""The hook as hosts run it, once for every command of an agent: `python -I -S program.py HOST` and where things lie.

A script is compiled each time it runs, so this one is short; what it does is in `respond`.
"""

import posix
import sys

if __name__ == "__main__":
    status = 2  # Python's own exit code for a failure, 1, lets the call run at most hosts
    try:
        # First of all, so that corral itself comes the short way. From this directory, which is ours, and only this.
        sys.path.insert(0, __file__.rpartition("/")[0])
        import fast_import  # type: ignore[import-not-found]

        # Under -I neither the package's own place nor site-packages is on the path. At its end: nothing there may stand in
        # for a module of the standard library.
        sys.path[:] = [*sys.path[1:], __file__.rsplit("/", 4)[0], *[word for word in sys.argv[2:] if word[:1] == "/"]]
        fast_import.begin()
        from corral.integrations.hooks.respond import main

        status = main(sys.argv[1:])
    except BaseException as error:  # noqa: BLE001  as above
        said = f"corral is not whole ({type(error).__name__}: {error}), so the call is refused. Install it again.\n"
        posix.write(2, said.encode("utf-8", "backslashreplace"))
    finally:
        # At once, whatever else is raised here: what was said is written, and nothing is worth closing.
        posix._exit(status)
