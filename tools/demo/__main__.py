"""`make demo`, `make demo SERVER=sqld`: `python -m tools.demo [--server sqld] [--check]`."""

from __future__ import annotations

if __name__ == "__main__":
    try:
        from tools.demo.performance import main  # takes a while, in which somebody may change their mind

        raise SystemExit(main())
    except KeyboardInterrupt:
        raise SystemExit(130) from None
