"""Trainings by other libraries under `holdfast launch`. Those whose steps Holdfast cannot make again
start again from the newest checkpoint when a rank dies, and say so before."""

from pathlib import Path

import lightning.pytorch  # noqa: F401  (imported here once, before the fork)
import pytest
import transformers
from recovered_jobs import launch

from holdfast.torch.huggingface import HoldfastTrainer
from holdfast.torch.lightning import HoldfastCallback

SCRIPT = Path(__file__).parent / "launched_adapters.py"
CANNOT = "makes the steps, and Holdfast cannot make one again"


def run(folder, library, kill):
    code, said = launch([SCRIPT, library, folder / "run", kill], ranks=2, said=folder / "said")
    assert code == 0, said
    return [(folder / f"run.end.{rank}").read_text() for rank in range(2)], said


@pytest.mark.parametrize("library, name", [("lightning", "Lightning"), ("huggingface", "the Trainer")])
def test_all_ranks_start_again_where_another_library_makes_the_steps(tmp_path, library, name):
    for folder in ("whole", "killed"):
        (tmp_path / folder).mkdir()
    whole, calm = run(tmp_path / "whole", library, -1)
    assert calm.count(f"{name} {CANNOT}: if a rank dies, all ranks start again") == 1, calm
    end, said = run(tmp_path / "killed", library, 4)
    assert said.count("all ranks start again from the newest checkpoint: recover=False") == 1, said
    assert said.count("goes on after") == 1 and "checkpoint, exact" in said, said
    assert end == whole, said


def test_accelerate_with_a_loop_of_ones_own_goes_on(tmp_path):
    for folder in ("whole", "killed"):
        (tmp_path / folder).mkdir()
    whole, _ = run(tmp_path / "whole", "accelerate", -1)
    end, said = run(tmp_path / "killed", "accelerate", 4)
    assert said.count("goes on after") == 1, said
    assert end == whole, said


def test_recovery_is_refused_in_a_sentence(tmp_path):
    with pytest.raises(ValueError, match=f"recover=True: Lightning {CANNOT}; expected no recover="):
        HoldfastCallback(tmp_path, recover=True)

    class Trainer(HoldfastTrainer, transformers.Trainer):
        pass

    config = transformers.GPT2Config(vocab_size=8, n_positions=8, n_embd=8, n_layer=1, n_head=1)
    with pytest.raises(ValueError, match=f"recover=True: the Trainer {CANNOT}"):
        Trainer(transformers.GPT2LMHeadModel(config), holdfast={"recover": True},
                args=transformers.TrainingArguments(str(tmp_path), use_cpu=True, report_to=[]))
