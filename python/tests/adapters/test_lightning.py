"""Lightning's Trainer, resumed by Holdfast with the same bits."""

import logging
import os
import signal
import warnings

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins.io import AsyncCheckpointIO
from ranks import run_ranks
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchdata.stateful_dataloader import StatefulDataLoader

import holdfast
from holdfast.torch.files import replace_folder
from holdfast.torch.lightning import HoldfastCallback, HoldfastIO

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")


class Model(pl.LightningModule):
    def __init__(self, width=8):
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(nn.Linear(4, width), nn.BatchNorm1d(width), nn.Dropout(0.3),
                                 nn.Linear(width, 1))
        self.losses = []
        self.seen = 0

    def training_step(self, batch, index):
        loss = (self.net(batch[0]) - batch[0].sum(1, keepdim=True)).pow(2).mean()
        self.losses.append(loss.item())
        self.seen += 1
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=6)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler,
                                                         "interval": "step"}}

    def on_save_checkpoint(self, checkpoint):
        checkpoint["seen"] = self.seen

    def on_load_checkpoint(self, checkpoint):
        self.seen = checkpoint["seen"]


class StopAt(pl.Callback):
    """Raises an exception or sends a signal before a given batch."""

    def __init__(self, batch, signal_number=None):
        self.batch = batch
        self.signal = signal_number

    def on_train_batch_start(self, trainer, module, batch, index):
        if len(module.losses) == self.batch:
            if self.signal is None:
                raise RuntimeError("stopped")
            os.kill(os.getpid(), self.signal)


def data():
    return TensorDataset(torch.arange(88.0).reshape(22, 4) / 40)


def loader(kind):
    if kind == "of three":
        return holdfast.data.loader(data(), 6, seed=3, epochs="each", last="drop")
    if kind == "holdfast":
        return holdfast.data.loader(data(), 2, seed=3, epochs="each")
    if kind == "resumable":
        return holdfast.data.resumable(DataLoader(data(), 2, shuffle=True))
    if kind == "torchdata":
        return StatefulDataLoader(data(), 2, shuffle=True)
    return StatefulDataLoader(data(), 2, shuffle=True, num_workers=2)


def fit(folder, kind="holdfast", seed=0, stop=None, every="1 steps", more=(), ckpt_path=None,
        plugins=(), **options):
    pl.seed_everything(seed)
    model = Model()
    callbacks = []
    if every is not None:
        callbacks = [HoldfastCallback(folder, every=every, keep=3,
                                      writing=holdfast.Writing(space_reserve=0))]
    callbacks += [*more, *([stop] if stop else [])]
    trainer = pl.Trainer(**({"max_epochs": 2, "accelerator": "cpu", "logger": False,
                             "enable_progress_bar": False, "enable_model_summary": False,
                             "default_root_dir": folder, "plugins": list(plugins),
                             "enable_checkpointing": any(isinstance(one, ModelCheckpoint)
                                                         for one in more)} | options),
                         callbacks=callbacks)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if stop is not None and stop.signal is None:
            with pytest.raises(RuntimeError, match="stopped"):
                trainer.fit(model, loader(kind), ckpt_path=ckpt_path)
        else:
            trainer.fit(model, loader(kind), ckpt_path=ckpt_path)
    return model, trainer


def same(a, b):
    a, b = a.state_dict(), b.state_dict()
    return all(torch.equal(a[key], b[key]) for key in a)


@pytest.mark.parametrize("kind", ["holdfast", "resumable", "torchdata", "torchdata, 2 workers"])
@pytest.mark.parametrize("stop", [4, 11, 14])  # an epoch has 11 batches
def test_a_resumed_run_has_the_losses_of_one_that_was_not_stopped(tmp_path, kind, stop):
    whole, _ = fit(tmp_path / "whole", kind)
    fit(tmp_path / "run", kind, stop=StopAt(stop))
    again, trainer = fit(tmp_path / "run", kind, seed=1)
    assert again.losses == whole.losses[stop:]
    assert same(again, whole)
    assert trainer.global_step == 22 and trainer.current_epoch == 2 and again.seen == 22


def test_saves_are_made_at_optimizer_boundaries_alone(tmp_path):
    whole, _ = fit(tmp_path / "whole", accumulate_grad_batches=4)
    fit(tmp_path / "run", accumulate_grad_batches=4, stop=StopAt(7))
    assert [folder.name for folder in (tmp_path / "run").glob("step-*")] == ["step-00000001"]
    again, _ = fit(tmp_path / "run", seed=1, accumulate_grad_batches=4)
    assert again.losses == whole.losses[4:] and same(again, whole)


class CountUnsettled(pl.Callback):
    """Counts the backward passes that begin while a save is not settled yet."""

    def __init__(self):
        self.hidden = 0

    def on_after_backward(self, trainer, module):
        ours = next(one for one in trainer.callbacks if isinstance(one, HoldfastCallback))
        self.hidden += ours.checkpointer._saves.is_unsettled


def test_the_copying_is_hidden_behind_forward_and_backward(tmp_path):
    counter = CountUnsettled()
    fit(tmp_path / "run", more=[counter])
    # All 21 steps but the first; of a slow training, a thread settles a save once in a second.
    assert counter.hidden > 15


def test_saving_does_not_change_the_run(tmp_path):
    plain, _ = fit(tmp_path / "plain", every=None)
    saved, _ = fit(tmp_path / "run")
    assert saved.losses == plain.losses and same(saved, plain)
    weight = holdfast.open(tmp_path / "run").read("model.net.0.weight")
    assert torch.equal(torch.from_numpy(weight), saved.net[0].weight.detach())


def test_a_signal_saves_and_ends_the_run(tmp_path):
    whole, _ = fit(tmp_path / "whole")
    with pytest.raises(SystemExit) as ended:
        fit(tmp_path / "run", every="1000 steps", stop=StopAt(3, signal.SIGTERM))
    assert ended.value.code == 143
    again, _ = fit(tmp_path / "run", seed=1)
    assert 0 < len(again.losses) < len(whole.losses)
    assert again.losses == whole.losses[-len(again.losses):] and same(again, whole)


@pytest.mark.parametrize("background", [False, True])
def test_lightnings_own_checkpoints_are_runs_and_resume(tmp_path, background):
    def io():
        return [AsyncCheckpointIO(HoldfastIO()) if background else HoldfastIO()]

    def keeper():
        return ModelCheckpoint(tmp_path / "kept", filename="{step}", every_n_train_steps=3,
                               save_top_k=-1, save_last=None if background else "link")

    whole, _ = fit(tmp_path / "whole", every=None)
    fit(tmp_path / "run", every=None, stop=StopAt(7), more=[keeper()], plugins=io())
    path = tmp_path / "kept" / "step=6.ckpt"
    assert path.is_dir() and (background or (tmp_path / "kept" / "last.ckpt").exists())
    assert holdfast.open(path)["state_dict.net.0.weight"].shape == [8, 4]
    again, trainer = fit(tmp_path / "run", seed=1, every=None, ckpt_path=str(path),
                         more=[keeper()], plugins=io())
    assert trainer.global_step == 22 and len(again.losses) == 16
    assert again.hparams.width == 8


@pytest.mark.parametrize("kind", ["holdfast", "resumable"])
@pytest.mark.parametrize("when", [{"every_n_train_steps": 11}, {"every_n_epochs": 1}])
def test_lightnings_own_checkpoint_of_an_epochs_end_goes_on_with_the_next(tmp_path, kind, when):
    keeper = ModelCheckpoint(tmp_path / "kept", filename="{step}", save_top_k=-1, **when)
    fit(tmp_path / "whole", kind, every=None, more=[keeper], max_epochs=3)
    again, trainer = fit(tmp_path / "run", kind, seed=1, every=None, max_epochs=3,
                         ckpt_path=str(tmp_path / "kept" / "step=11.ckpt"))
    assert trainer.global_step == 33 and len(again.losses) == 22


def test_a_checkpoint_takes_the_place_of_the_old_one_and_can_be_removed(tmp_path):
    io = HoldfastIO()
    for step in (5, 2):
        io.save_checkpoint({"global_step": step, "w": torch.full((3,), step)}, tmp_path / "a.ckpt")
        loaded = io.load_checkpoint(tmp_path / "a.ckpt")
        assert loaded["global_step"] == step and loaded["w"].tolist() == [step] * 3
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.ckpt"]
    with pytest.raises(TypeError, match="hook: a builtins.object"):
        io.save_checkpoint({"hook": object()}, tmp_path / "a.ckpt")
    assert io.load_checkpoint(tmp_path / "a.ckpt")["global_step"] == 2
    io.remove_checkpoint(tmp_path / "a.ckpt")
    io.remove_checkpoint(tmp_path / "a.ckpt")
    assert not list(tmp_path.iterdir())


def test_a_crash_between_two_renames_leaves_the_old_checkpoint(tmp_path, monkeypatch):
    io = HoldfastIO()
    io.save_checkpoint({"global_step": 1, "w": torch.ones(3)}, tmp_path / "new" / "a.ckpt")
    monkeypatch.setattr(replace_folder, "_exchange", lambda one, two: False)
    rename = os.rename

    def crash(old, new):
        if str(new).endswith("a.ckpt"):
            raise OSError("crashed")
        rename(old, new)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", crash)
        with pytest.raises(OSError, match="crashed"):
            io.save_checkpoint({"global_step": 2}, tmp_path / "new" / "a.ckpt")
    loaded = io.load_checkpoint(tmp_path / "new" / "a.ckpt")
    assert loaded["global_step"] == 1 and loaded["w"].tolist() == [1] * 3
    io.save_checkpoint({"global_step": 3}, tmp_path / "new" / "a.ckpt")
    assert io.load_checkpoint(tmp_path / "new" / "a.ckpt")["global_step"] == 3
    assert [entry.name for entry in (tmp_path / "new").iterdir()] == ["a.ckpt"]


def test_a_file_of_torch_save_is_loaded(tmp_path):
    torch.save({"global_step": 3, "w": torch.ones(2)}, tmp_path / "old.ckpt")
    assert HoldfastIO().load_checkpoint(tmp_path / "old.ckpt")["w"].tolist() == [1, 1]


def stop_and_go_on(rank, world, folder):
    # Lightning needs the variables, but the process group exists already.
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0")

    def three(name, **options):
        return fit(f"{folder}/{name}", "of three", devices=world, strategy="ddp", **options)

    whole, _ = three("whole")
    three("run", stop=StopAt(3))
    again, trainer = three("run", seed=1)
    assert trainer.world_size == world
    return again.losses == whole.losses[3:] and same(again, whole)


def test_three_ranks_go_on_with_the_same_bits(tmp_path):
    assert all(run_ranks(3, stop_and_go_on, str(tmp_path), timeout=200))
