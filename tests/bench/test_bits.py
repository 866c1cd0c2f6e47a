"""The bits of outputs as a text (bench.bits): a fold knows every word and its place."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import bench.bits as bits
from bench.bits import CHUNK, FOLDED, digest, fold
from bench.layers import DenseShape, Layer
from bench.suites import Row
from bench.tensors import dense_tensors

WORD = st.integers(-(1 << 31), (1 << 31) - 1)


def folded(words: list[int]) -> tuple[int, ...]:
    return tuple(fold(torch.tensor(words, dtype=torch.int32).view(torch.uint8)).view(torch.int64).tolist())


@settings(max_examples=200, deadline=None)
@given(words=st.lists(WORD, min_size=1, max_size=60), data=st.data())
def test_one_word_changed_changes_both_sums(words, data):
    place = data.draw(st.integers(0, len(words) - 1))
    other = data.draw(WORD.filter(lambda word: word != words[place]))
    changed = [*words[:place], other, *words[place + 1 :]]
    assert folded(words) == folded(list(words))
    assert all(a != b for a, b in zip(folded(words), folded(changed), strict=True))


@settings(max_examples=200, deadline=None)
@given(words=st.lists(WORD, min_size=2, max_size=60, unique=True), data=st.data())
def test_words_swapped_change_it(words, data):
    first, second = data.draw(
        st.lists(st.integers(0, len(words) - 1), min_size=2, max_size=2, unique=True), label="places"
    )
    swapped = list(words)
    swapped[first], swapped[second] = words[second], words[first]
    assert folded(swapped) != folded(words)


@pytest.mark.parametrize(("first", "second"), [(0, 1), (7, 4095), (100, 2000), (4094, 4095)])
def test_places_far_apart(first, second):
    words = list(range(1, 4097))
    swapped = list(words)
    swapped[first], swapped[second] = words[second], words[first]
    assert folded(swapped) != folded(words)


@pytest.mark.parametrize("bit", [0, 15, 16, 31])
def test_every_bit_of_a_word_counts(bit):
    raw = torch.arange(1, 4097, dtype=torch.int32).view(torch.uint8)
    changed = raw.clone()
    changed[4 * 77 + bit // 8] ^= 1 << bit % 8
    assert (fold(changed).view(torch.int64) != fold(raw).view(torch.int64)).all()


@pytest.mark.parametrize("chunk", [1, 7, 64, 1000])
def test_a_fold_does_not_depend_on_its_chunks(chunk, monkeypatch):
    words = torch.randint(-(1 << 31), 1 << 31, (200,), generator=torch.Generator().manual_seed(0)).tolist()
    whole = folded(words)
    monkeypatch.setattr(bits, "CHUNK", chunk)
    assert folded(words) == whole


def test_large_outputs_are_told_apart():
    out = torch.zeros(FOLDED // 2 + 8, dtype=torch.bfloat16)
    assert out.numel() // 2 < CHUNK
    before = digest([out])
    assert digest([out.clone()]) == before
    out[-1] = 1.0
    assert digest([out]) != before != digest([out[:8]])


@pytest.mark.parametrize("limit", [FOLDED, 0])
def test_a_view_has_the_bits_of_its_elements_in_order(limit, monkeypatch):
    monkeypatch.setattr(bits, "FOLDED", limit)
    layer = Layer("slotted", 24, 32, heads=3, slot=40, weight="in_out")
    t = dense_tensors(Row("dense", "fwd", "eager", DenseShape(layer, 33), "bf16"), "cpu")
    for view in (t.X, t.G, t.W):
        assert not view.is_contiguous() and digest([view]) == digest([view.contiguous()])
        assert digest([view]) != digest([view.mT])
    assert digest([t.X, t.G]) != digest([t.G, t.X])


def test_zeros_of_either_sign_and_sizes_are_told_apart(monkeypatch):
    for limit in (FOLDED, 0):
        monkeypatch.setattr(bits, "FOLDED", limit)
        zeros = torch.zeros(8, 16, dtype=torch.bfloat16)
        assert len({digest([zeros]), digest([-zeros]), digest([zeros[:4]])}) == 3
