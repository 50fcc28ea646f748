"""``python -m itta``: the same as the command ``itta``."""

from itta.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
