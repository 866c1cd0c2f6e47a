"""``python -m bench`` is ``cake-bench``, and so is the installed command: :func:`main`."""

from __future__ import annotations

import sys


def main() -> None:
    """The command line. Ctrl-C while it is still importing (seconds, for torch) is one line and code 2."""
    try:
        from bench.cli import app

        app(prog_name="cake-bench")
    except KeyboardInterrupt:
        print("error: interrupted before the first row", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
