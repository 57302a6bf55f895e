"""A model of Hugging Face changes its configuration while it trains, with all bits."""

import pytest
import transformers  # noqa: F401  (imported here once, before the fork)
from elastic_ran import Job


@pytest.mark.parametrize(("first", "plan"), [("dp=2", ["dp=3", "dp=4", "dp=1"]), ("dp=1", ["dp=4", "dp=2"])])
def test_a_model_of_hugging_face_keeps_all_bits_and_samples(tmp_path, first, plan):
    whole = Job(tmp_path / "whole", "dp=1", steps=150, how=["hugging face", "no bits"], ranks=1, most=1)
    assert whole.code == 0, whole.said
    job = Job(tmp_path / "run", first, ";".join(plan), how=["hugging face"], ranks=int(first[3:]))
    assert job.code == 0, job.said
    assert [one["state"] for one in job.answers] == ["made"] * len(plan), job.said
    assert job.check_bits() == len(plan)
    expected = whole.batches()
    common = [step for step in job.batches() if step in expected]
    assert len(common) > 8 and {step: job.batches()[step] for step in common} == {
        step: expected[step] for step in common}
