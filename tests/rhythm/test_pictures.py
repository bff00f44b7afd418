"""The pictures of the rhythm in the documentation are what its rules draw now."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.rhythm_pictures import FOLDER, main


@pytest.mark.parametrize("name", ["rhythm-bars.svg", "rhythm-phrase.svg"])
def test_a_picture_shows_the_rules_as_they_are(name: str, tmp_path: Path) -> None:
    main(tmp_path)
    assert (FOLDER / name).read_text() == (tmp_path / name).read_text(), (
        "run: python -m tools.rhythm_pictures"
    )
