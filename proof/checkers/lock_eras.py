"""Actions on locks by era: a rollback removes some holds and restores others.

Tokens are checked across eras elsewhere. Here each era is checked by itself, by the holds that began in it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from proof.checkers.lock_model import Kind, LockAction
from proof.history import Step
from proof.losses import Losses


def in_eras(actions: Sequence[LockAction], losses: Losses) -> list[list[LockAction]]:
    """Return the actions of each era, without those on holds of another era."""
    if not losses:
        return [list(actions)]
    eras: list[list[LockAction]] = [[] for _ in losses.eras]
    homes = {
        each.token: losses.era_of(each.began, each.ended)
        for each in actions
        if each.kind is Kind.ACQUIRE and each.step is Step.OK
    }
    for each in actions:
        first, last = losses.span(each.began, each.ended)
        if each.kind is Kind.ACQUIRE and each.step is not Step.OK:
            for era in range(first, last + 1):
                eras[era].append(each)  # a look may find an unknown hold
            continue
        home = homes.get(each.token, first)
        if home != first:
            continue
        if first == last:
            eras[first].append(each)
        elif each.kind in (Kind.RENEW, Kind.RELEASE):
            eras[first].append(replace(each, step=Step.UNKNOWN, ended=math.inf))
    return eras
