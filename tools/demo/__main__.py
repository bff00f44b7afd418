"""`make demo`: `python -m tools.demo [--server sqld] [--strict] [--keep] [--check]`."""

from __future__ import annotations

if __name__ == "__main__":
    try:
        from tools.demo.run import main  # slow to import: Ctrl-C must work meanwhile

        raise SystemExit(main())
    except KeyboardInterrupt:
        raise SystemExit(130) from None
