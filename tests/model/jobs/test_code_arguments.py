"""Which words of a command are code, in which no reference is put."""

from __future__ import annotations

import pytest

from vox_mesh.model.jobs.code_arguments import code_places


@pytest.mark.parametrize(
    "command",
    [
        "sh -c CODE sh data",
        "/bin/bash -cx CODE data",
        "bash -c -x CODE data",
        "bash -ceuo pipefail CODE data",
        "bash -o pipefail -c CODE data",
        "bash -c +o posix CODE data",
        "fish --comm CODE",
        "env -i LANG=C bash -lc CODE",
        "env -S CODE",
        "xargs -0 sh -c CODE",
        "su -c CODE user",
        "python3.12 -Ic CODE data",
        "python -m pytest data",
        "perl -E CODE data",
        "perl5.36 -lne CODE data",
        "ruby -rjson -e CODE data",
        "node -p CODE data",
        "nodejs --print CODE",
        "deno eval --ext=ts CODE",
        "php8.2 -r CODE data",
        "Rscript --vanilla -e CODE",
        "pwsh -NoProfile -Command CODE CODE",
        "pwsh -comm CODE CODE",
        "pwsh -File script.ps1 data",
        "awk -F , -v n=1 CODE data",
        "awk -vx=F CODE data",
        "awk -f CODE data",
        "sed -n CODE data",
        "mysql --execute CODE",
        "psql -d mesh -c CODE",
        "make -c data",
        "grep -r awk data",
    ],
)
def test_code_is_found_and_data_is_not_taken_for_it(command: str) -> None:
    words = command.split()
    found = [words[place] for place in sorted(code_places(words)) if words[place][0] not in "-+"]
    assert found == [word for word in words if word == "CODE"]


@pytest.mark.parametrize("command", ["sh -cecho", "node --eval=1", "perl -eprint", "pwsh -c:1"])
def test_an_option_of_an_interpreter_may_hold_code(command: str) -> None:
    assert code_places(command.split()) == {1}
