"""Hugging Face's Trainer, resumed by Holdfast with the same bits."""

import os
import shutil
import signal

import pytest
import torch
import transformers
from ranks import run_ranks

import holdfast
from holdfast.torch.huggingface import HoldfastTrainer

transformers.utils.logging.disable_progress_bar()


class Trainer(HoldfastTrainer, transformers.Trainer):
    """A Trainer as a user would write it, which also records its losses."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.losses = []
        self.stop_after = None

    def training_step(self, *args, **kwargs):
        if self.stop_after is not None and len(self.losses) == self.stop_after:
            raise KeyboardInterrupt
        loss = super().training_step(*args, **kwargs)
        self.losses.append(loss.item())
        return loss


class Texts(torch.utils.data.Dataset):
    def __len__(self):
        return 22

    def __getitem__(self, index):
        made = torch.Generator().manual_seed(index)
        ids = torch.randint(0, 50, (12,), generator=made)
        return {"input_ids": ids, "labels": ids}


def trainer_in(folder, seed=0, kind=Trainer, tiers=(), **options):
    torch.manual_seed(seed)
    config = transformers.GPT2Config(vocab_size=50, n_positions=16, n_embd=16, n_layer=2,
                                     n_head=2, resid_pdrop=0.2, embd_pdrop=0.2, attn_pdrop=0.2)
    defaults = dict(output_dir=str(folder), per_device_train_batch_size=2, num_train_epochs=2,
                    save_steps=3, logging_steps=1, learning_rate=1e-2, warmup_steps=4,
                    use_cpu=True, report_to=[], seed=7, disable_tqdm=True)
    args = transformers.TrainingArguments(**(defaults | options))
    ours = {"writing": holdfast.Writing(space_reserve=0), "tiers": tiers}
    more = {"holdfast": ours} if kind is Trainer else {}
    return kind(transformers.GPT2LMHeadModel(config), args, train_dataset=Texts(), **more)


def weights(trainer):
    return {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}


def logged(trainer):
    return [(line["step"], line["loss"], line["learning_rate"])
            for line in trainer.state.log_history if "loss" in line]


def same(a, b):
    return list(a) == list(b) and all(torch.equal(a[key], b[key]) for key in a)


HOW = {
    "plain": {},
    "accumulated": {"gradient_accumulation_steps": 2, "save_steps": 2},
    "epochs": {"save_strategy": "epoch"},
    "mean of three": {"logging_steps": 4},
    "workers": {"dataloader_num_workers": 2},
}


@pytest.mark.parametrize("name", HOW)
def test_a_resumed_run_has_the_losses_of_one_that_was_not_stopped(tmp_path, name):
    whole = trainer_in(tmp_path / "whole", **HOW[name])
    whole.train()
    stopped = trainer_in(tmp_path / "run", **HOW[name])
    stopped.stop_after = 16  # batches
    with pytest.raises(KeyboardInterrupt):
        stopped.train(resume_from_checkpoint="auto")
    again = trainer_in(tmp_path / "run", seed=1, **HOW[name])
    assert not same(weights(again), weights(stopped))
    again.train(resume_from_checkpoint=True)
    done = len(whole.losses) - len(again.losses)
    assert 0 < done <= 16
    assert again.losses == whole.losses[done:]
    assert same(weights(again), weights(whole))
    assert logged(again) == logged(whole)
    assert again.state.global_step == whole.state.global_step
    assert not list((tmp_path / "run").glob("checkpoint-*"))


def test_saving_does_not_change_the_run(tmp_path):
    runs = []
    for options in ({"save_strategy": "no"}, {"save_steps": 1, "save_total_limit": 2}):
        trainer = trainer_in(tmp_path / str(len(runs)), max_steps=6, **options)
        trainer.train()
        runs.append((trainer.losses, weights(trainer)))
    assert runs[0][0] == runs[1][0] and same(runs[0][1], runs[1][1])
    steps = sorted(folder.name for folder in (tmp_path / "1").glob("step-*"))
    assert steps == ["step-00000005", "step-00000006"]
    weight = holdfast.open(tmp_path / "1").read("model.transformer.wte.weight")
    assert torch.equal(torch.from_numpy(weight), runs[1][1]["transformer.wte.weight"])


def test_a_signal_saves_and_ends_the_run(tmp_path):
    whole = trainer_in(tmp_path / "whole")
    whole.train()
    stopped = trainer_in(tmp_path / "run", save_strategy="no")

    class Signal(transformers.TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == 4:
                os.kill(os.getpid(), signal.SIGTERM)

    stopped.add_callback(Signal())
    with pytest.raises(SystemExit) as ended:
        stopped.train()
    assert ended.value.code == 143
    again = trainer_in(tmp_path / "run", seed=1)
    again.train(resume_from_checkpoint=True)
    assert again.losses == whole.losses[-len(again.losses):]
    assert len(again.losses) < len(whole.losses) - 3


def test_a_run_that_has_steps_is_not_begun_anew(tmp_path):
    trainer_in(tmp_path, max_steps=3).train()
    with pytest.raises(ValueError, match='already; expected resume_from_checkpoint="auto"'):
        trainer_in(tmp_path, max_steps=3).train()


def test_what_cannot_be_resumed_says_so(tmp_path):
    with pytest.raises(holdfast.NotFoundError):
        trainer_in(tmp_path / "none").train(resume_from_checkpoint=True)
    with holdfast.Saver(tmp_path / "other", writing=holdfast.Writing(space_reserve=0)) as saver:
        saver.save(1, {"a": torch.ones(2)}, {"mine": 1})
    with pytest.raises(ValueError, match="not of a Trainer; expected another output_dir"):
        trainer_in(tmp_path / "other").train(resume_from_checkpoint="auto")
    with pytest.raises(ValueError, match="save_only_model: needs the Trainer's own checkpoints"):
        trainer_in(tmp_path / "none", save_only_model=True)


def test_a_checkpoint_of_the_trainers_own_is_taken_up_and_saved_anew(tmp_path):
    own = trainer_in(tmp_path, max_steps=6, kind=transformers.Trainer)
    own.train()
    again = trainer_in(tmp_path, seed=1)
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-6"))
    assert len(again.losses) == again.state.global_step - 6
    state = holdfast.open(tmp_path).objects["things"]["trainer"]["state"]
    assert state["global_step"] == again.state.global_step


def stop_and_go_on(rank, world, folder):
    """The training continues on another machine:
    the run directory is lost, but a tier has a copy."""
    os.environ.update(LOCAL_WORLD_SIZE=str(world), MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    whole = trainer_in(f"{folder}/whole", max_steps=6)
    whole.train()
    tiers = [f"{folder}/copies"]
    stopped = trainer_in(f"{folder}/run", max_steps=6, save_steps=2, tiers=tiers)
    stopped.stop_after = 5
    with pytest.raises(KeyboardInterrupt):
        stopped.train()
    torch.distributed.barrier()
    if rank == 0:
        shutil.rmtree(f"{folder}/run")
    again = trainer_in(f"{folder}/run", seed=1, max_steps=6, tiers=tiers)
    again.train(resume_from_checkpoint=True)
    assert whole.args.world_size == world
    return again.losses == whole.losses[4:] and same(weights(again), weights(whole))


def test_three_ranks_go_on_with_the_same_bits(tmp_path):
    assert all(run_ranks(3, stop_and_go_on, str(tmp_path), timeout=200))
