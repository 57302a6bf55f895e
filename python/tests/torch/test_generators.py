"""After a restore, every random generator draws what it would have drawn."""

import random
import warnings

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import holdfast
from holdfast.torch.values import global_generators
from holdfast.torch.values.generators import capture, restore


def others():
    return {"torch": torch.Generator().manual_seed(1), "python": random.Random(2),
            "numpy": np.random.default_rng(3), "legacy": np.random.RandomState(4),
            "philox": np.random.Generator(np.random.Philox(5)),
            "pcg": np.random.Generator(np.random.MT19937(6))}


def draw(extra):
    """Draws from every generator, also numbers that it keeps for the next call (gauss)."""
    return [random.random(), random.gauss(0, 1), np.random.rand(), np.random.randn(),
            torch.rand(3).tolist(), torch.randn(1).tolist(),
            torch.rand(2, generator=extra["torch"]).tolist(), extra["python"].gauss(0, 1),
            extra["numpy"].random(), extra["legacy"].randn(),
            extra["philox"].integers(9, size=3).tolist(), extra["pcg"].standard_normal()]


def test_all_draw_on_as_if_nothing_had_happened(tmp_path):
    extra = others()
    draw(extra)
    with holdfast.Saver(tmp_path / "run", writing=holdfast.Writing(space_reserve=0)) as saver:
        saver.save(1, {"none": torch.zeros(1)}, capture(extra))
    wanted = [draw(extra) for _ in range(2)]
    random.seed(0), np.random.seed(0), torch.manual_seed(0)
    again = others()
    saved = holdfast.restore(tmp_path / "run", {"none": torch.zeros(1)}).objects
    assert restore(saved, again) == []
    assert [draw(again) for _ in range(2)] == wanted


def test_a_restore_after_the_loaders_iterator_undoes_what_it_drew():
    saved = capture()
    wanted = torch.rand(3)
    restore(saved)
    batches = iter(DataLoader(list(range(4))))
    next(batches)
    restore(saved)
    assert torch.equal(torch.rand(3), wanted)


def test_capture_draws_nothing():
    first = capture()
    assert capture() == first


def test_numpys_state_is_that_of_the_moment_whatever_was_drawn():
    """capture() reuses an earlier state if its words are equal.
    A second Gaussian changes no word."""
    np.random.seed(7)
    kept = np.random.get_state()
    moves = [lambda: None, np.random.rand, np.random.randn, np.random.randn, lambda: None,
             np.random.randn, lambda: np.random.seed(7), lambda: np.random.set_state(kept),
             lambda: np.random.randint(5), np.random.randn, np.random.randn]
    for number, move in enumerate(moves):
        move()
        saved = capture()
        now = np.random.get_state(legacy=False)
        restore(saved)
        then = np.random.get_state(legacy=False)
        assert repr(then["has_gauss"]) == repr(now["has_gauss"]), number
        assert then["gauss"] == now["gauss"], number
        assert then["state"]["pos"] == now["state"]["pos"], number
        assert (then["state"]["key"] == now["state"]["key"]).all(), number


def test_another_bit_generator_of_numpy_is_saved_as_it_is():
    mine = np.random.get_bit_generator()
    capture()
    try:
        np.random.set_bit_generator(np.random.PCG64(3))
        saved = capture()
        wanted = np.random.rand(3).tolist()
        restore(saved)
        assert np.random.rand(3).tolist() == wanted
    finally:
        np.random.set_bit_generator(mine)


def test_another_number_of_threads_is_warned_of():
    saved = capture()
    saved["threads"] += 3
    with pytest.warns(RuntimeWarning, match=r"threads: \d+, and \d+ when it was saved"):
        assert len(restore(saved)) == 1


def test_generators_that_are_missing_on_a_side_are_told():
    saved = capture({"a": random.Random(1)})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert restore(saved, {"b": random.Random(1)}) == [
            "generator a: not in this process", "generator b: not in the checkpoint"]


def test_a_generator_of_another_kind_is_refused_by_name():
    with pytest.raises(TypeError, match="generator mine: a builtins.int"):
        capture({"mine": 3})
    with pytest.raises(ValueError, match="generator a: a Generator; expected the python generator"):
        restore(capture({"a": random.Random(1)}), {"a": torch.Generator()})


def test_every_move_of_pythons_generator_is_seen():
    moves = [lambda: None, random.random, lambda: None, lambda: random.gauss(0, 1),
             lambda: None, lambda: random.gauss(0, 1), lambda: random.seed(3), lambda: None,
             lambda: random.getrandbits(7), lambda: random.setstate(random.Random(5).getstate())]
    for move in moves:
        move()
        captured = capture()["python"]
        want = random.getstate()
        random.seed(99)
        restore_python(captured)
        assert random.getstate() == want


def test_every_move_of_torchs_generator_is_seen():
    """A second Gaussian uses no word of the generator, and is as long as a float or a double."""
    state = torch.get_rng_state()
    small, large = torch.empty(1), torch.empty(1, dtype=torch.float64)
    moves = [lambda: None, small.normal_, small.normal_, lambda: None, large.normal_, small.normal_,
             small.uniform_, large.normal_, lambda: torch.manual_seed(3), lambda: torch.randn(40),
             lambda: torch.set_rng_state(state), lambda: torch.randperm(5), lambda: torch.rand(700)]
    for number, move in enumerate(moves):
        move()
        assert capture()["torch"] == bytes(torch.get_rng_state().numpy()), number


def test_the_memory_of_torchs_generator_is_understood_in_this_version_of_torch():
    """Without that, every look at the generator would ask for its state: right, and slower."""
    with torch.device("meta"):  # a program may have another default device
        assert global_generators._find_torch_words() >= 0


def restore_python(captured):
    state = capture()
    restore(state | {"python": captured})
