"""Parquet and Arrow files: a dataset of Hugging Face under holdfast.data.loader."""

import itertools

import datasets
import pyarrow.parquet
import pytest

from holdfast.data import Sequence, loader


def rows_of(path):
    return datasets.Dataset.from_parquet(str(path), cache_dir=str(path.parent / "cache"))


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "a.parquet"
    rows = pyarrow.table({"n": list(range(100)), "text": [f"{n}" * 3 for n in range(100)]})
    pyarrow.parquet.write_table(rows, path)
    return path


def test_a_parquet_file_is_read_once_by_three_ranks_that_become_two(path):
    state, seen = None, []
    for world, most in ((3, 4), (2, None)):
        ranks = [loader(rows_of(path), 10, seed=2, rank=rank, world=world, epochs=1) for rank in range(world)]
        for one in ranks if state is not None else []:
            one.load_state_dict(state)
        for batches in itertools.islice(zip(*ranks, strict=True), most):
            assert all(text == f"{n}" * 3 for batch in batches
                       for n, text in zip(batch["n"].tolist(), batch["text"], strict=True))
            seen += [n for batch in batches for n in batch["n"].tolist()]
        states = [one.state_dict() for one in ranks]
        assert all(one == states[0] for one in states)
        state = states[0]
    assert seen == Sequence(100, 10, seed=2).indices(0, 100)
    assert sorted(seen) == list(range(100))


def test_other_rows_are_refused_by_their_fingerprint(path):
    state = loader(rows_of(path), 10).state_dict()
    assert state["fingerprint"] == rows_of(path)._fingerprint
    with pytest.raises(ValueError, match="the dataset is not the one of the checkpoint"):
        loader(rows_of(path).select(reversed(range(100))), 10).load_state_dict(state)
