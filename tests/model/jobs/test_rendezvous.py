"""Rendezvous: everyone comes to the same ranks, and over many jobs each node gets its share."""

from __future__ import annotations

from collections import Counter
from hashlib import sha256
from math import log
from random import Random
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.running.examples import few
from vox_mesh.model.jobs.rendezvous import MAX_PATIENCE_MS, Ranking, patience_ms, score

_JOBS: Final = 10_000
_IDS: Final = st.text("0123456789abcdef", min_size=64, max_size=64)
_NAMES: Final = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=12)
_WEIGHTS: Final = st.dictionaries(_NAMES, st.integers(1, 1_000), min_size=1, max_size=8)


def jobs(seed: int) -> list[tuple[str, str]]:
    """Ids and seeds of many jobs, the same ones every time."""
    random = Random(seed)
    return [(random.randbytes(32).hex(), random.randbytes(32).hex()) for _ in range(_JOBS)]


def winners(seed: int, weights: dict[str, int]) -> Counter[str]:
    """How many of the jobs each node would be the first to claim."""
    return Counter(
        min(weights, key=lambda node: score(job_id, job_seed, node, weights[node]))
        for job_id, job_seed in jobs(seed)
    )


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_equal_nodes_get_equal_parts(seed: int) -> None:
    won = winners(seed, {f"node-{n}": 8 for n in range(5)})
    assert all(abs(count - _JOBS / 5) <= 0.05 * _JOBS / 5 for count in won.values()), won
    assert len(won) == 5


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_nodes_get_parts_by_their_weights(seed: int) -> None:
    weights = {"a": 1, "b": 2, "c": 4}
    won = winners(seed, weights)
    shares = {node: _JOBS * weight / 7 for node, weight in weights.items()}
    assert all(abs(won[node] - share) <= 0.05 * share for node, share in shares.items()), won


@few
@given(_IDS, _IDS, _WEIGHTS)
def test_the_ranks_are_a_row_without_gaps_no_matter_who_works_them_out(
    job_id: str, seed: str, weights: dict[str, int]
) -> None:
    ranks = [Ranking(node, weights).place(job_id, seed) for node in weights]
    assert sorted(ranks) == list(range(len(weights)))
    firsts = [Ranking(node, weights).is_first(job_id, seed) for node in weights]
    assert firsts == [place == 0 for place in ranks]
    backwards = dict(reversed(weights.items()))
    assert [Ranking(node, backwards).place(job_id, seed) for node in weights] == ranks


@few
@given(_IDS, _IDS, _WEIGHTS, _NAMES)
def test_who_goes_away_changes_the_order_of_no_others(
    job_id: str, seed: str, weights: dict[str, int], gone: str
) -> None:
    def order(nodes: dict[str, int]) -> list[str]:
        return sorted(nodes, key=lambda node: Ranking(node, nodes).place(job_id, seed))

    left = {node: weight for node, weight in weights.items() if node != gone}
    assert order(left) == [node for node in order(weights) if node != gone]


@few
@given(_IDS, _IDS, st.lists(_NAMES, min_size=1, max_size=8, unique=True))
def test_equal_weights_leave_the_order_of_the_hashes(job_id: str, seed: str, nodes: list[str]) -> None:
    def plain(node: str) -> bytes:
        return sha256(job_id.encode() + bytes.fromhex(seed) + node.encode()).digest()

    weights = dict.fromkeys(nodes, 8)
    assert sorted(nodes, key=lambda node: Ranking(node, weights).place(job_id, seed)) == sorted(
        nodes, key=plain
    )


@few
@given(_IDS, _IDS, _NAMES, st.integers(1, 1_000))
def test_the_score_is_the_hash_between_0_and_1_by_the_weight(
    job_id: str, seed: str, node: str, weight: int
) -> None:
    digest = sha256(job_id.encode() + bytes.fromhex(seed) + node.encode()).digest()
    share = int.from_bytes(digest, "big") / 2**256
    assert score(job_id, seed, node, weight) == pytest.approx(-log(1 - share) / weight, rel=1e-6, abs=1e-12)
    assert score(job_id, seed, node, weight) > 0


def test_each_rank_waits_one_grace_longer_and_after_four_the_crowd_comes_in_groups() -> None:
    waits = [patience_ms(place) for place in range(70)]
    assert waits[:9] == [0, 250, 500, 750, 1_000, 1_000, 1_000, 1_000, 1_250]
    assert [waits.count(each) for each in sorted(set(waits))] == [1, 1, 1, 1, 4, 8, 16, 32, 6]
    assert patience_ms(2, grace_ms=10) == 20
    assert patience_ms(10**9) == max(waits) == MAX_PATIENCE_MS
