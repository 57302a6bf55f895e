"""`holdfast rehearse` on scripts of Lightning and of Hugging Face's Trainer."""

import lightning  # noqa: F401  (imported once, before processes are forked)
import pytest
import transformers  # noqa: F401
from rehearsed import rehearse

LIGHTNING = """
import logging, sys, warnings
import lightning.pytorch as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import holdfast
from holdfast.torch.lightning import HoldfastCallback

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.filterwarnings("ignore")

class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 1))

    def training_step(self, batch):
        return (self.net(batch[0]) - batch[1]).pow(2).mean()

    def validation_step(self, batch):
        self.log("val", (self.net(batch[0]) - batch[1]).pow(2).mean())

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2)

pl.seed_everything(0)
x = torch.randn(40, 4)
data = TensorDataset(x, x.sum(1, keepdim=True))
loader = holdfast.data.resumable(DataLoader(data, 8, shuffle=True))
trainer = pl.Trainer(max_epochs=4, logger=False, enable_checkpointing=False,
                     enable_progress_bar=False, enable_model_summary=False,
                     callbacks=[HoldfastCallback("run", every="1h")])
trainer.fit(Module(), loader, DataLoader(data, 20))
"""

TRAINER = """
import torch, warnings
from torch import nn
import transformers
from holdfast.torch.huggingface import HoldfastTrainer

class Trainer(HoldfastTrainer, transformers.Trainer):
    pass

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 1))

    def forward(self, x, labels):
        return {"loss": (self.net(x) - labels).pow(2).mean()}

transformers.set_seed(0)
x = torch.randn(40, 4)
data = [{"x": one, "labels": one.sum()[None]} for one in x]
args = transformers.TrainingArguments("run", num_train_epochs=4, per_device_train_batch_size=8,
                                      save_strategy="steps", save_steps=1000, report_to=[],
                                      disable_tqdm=True, use_cpu=True, logging_steps=1000)
Trainer(Net(), args, train_dataset=data).train(resume_from_checkpoint="auto")
"""


@pytest.mark.parametrize("script", [LIGHTNING, TRAINER], ids=["Lightning", "Trainer"])
def test_a_script_of_a_trainer_is_exact_also_at_the_end_of_an_epoch(tmp_path, monkeypatch, script):
    monkeypatch.chdir(tmp_path)
    found = rehearse(script, tmp_path, steps=11)
    print(found.text)
    assert found.code == 0, found.text
    assert not any("epoch's end" in one for one in found.json["not_rehearsed"])
    assert not (tmp_path / "run").exists()


# Leaves Lightning's loops in their restart, in which they skip the validation after a last batch.
NO_END_OF_RESTART = """
import holdfast.torch.adapters.lightning_loops as loops
import holdfast.torch.lightning as adapter
loops.end_restart = lambda fit_loop: None
"""


@pytest.mark.parametrize(("mend", "code"), [("", 0), (NO_END_OF_RESTART, 1)], ids=["mended", "not mended"])
def test_a_validation_after_a_last_batch_is_made_by_its_mend(tmp_path, monkeypatch, mend, code):
    monkeypatch.chdir(tmp_path)
    script = LIGHTNING.replace("return torch.optim.AdamW(self.parameters(), lr=1e-2)", """
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=1.0)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": plateau, "monitor": "val"}}""")
    found = rehearse(script, tmp_path, steps=13, at=(5, 9), mend=mend)
    print(found.text)
    assert found.code == code, found.text
    assert bool(found.json["first_difference"]) == code, found.text


# Lets Lightning restart its loops by itself, as if a resume at an epoch's end were one in its middle.
NO_EPOCH_END = """
import holdfast.torch.lightning as adapter
adapter.begin_epoch = lambda fit_loop: None
"""


@pytest.mark.parametrize(("mend", "code"), [("", 0), (NO_EPOCH_END, 1)], ids=["mended", "not mended"])
def test_a_resume_of_lightning_at_an_epochs_end_is_exact_by_its_mend(tmp_path, monkeypatch, mend,
                                                                    code):
    monkeypatch.chdir(tmp_path)
    # The save is that of an epoch's last batch, and the next kill is in the middle of the next epoch.
    found = rehearse(LIGHTNING, tmp_path, steps=11, at=(6, 8), mend=mend)
    print(found.text)
    assert found.code == code, found.text


def test_checkpoints_that_lightning_decides_on_go_to_the_rehearsal(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    script = LIGHTNING.replace("enable_checkpointing=False", "plugins=[HoldfastIO()]").replace(
        'callbacks=[', 'callbacks=[pl.callbacks.ModelCheckpoint("own", every_n_train_steps=2), ').replace(
        "import HoldfastCallback", "import HoldfastCallback, HoldfastIO")
    found = rehearse(script, tmp_path, steps=11)
    assert found.code == 0, found.text
    assert not [one for one in (tmp_path / "own").rglob("*") if one.is_file()]


# The Trainer reads a batch ahead, and nothing notes what was drawn for it.
NO_NOTES = """
from holdfast.torch.adapters.read_ahead import ReadAhead
ReadAhead.watch = lambda self, loader: None
"""


@pytest.mark.parametrize(("mend", "code"), [("", 0), (NO_NOTES, 1)], ids=["mended", "not mended"])
def test_what_the_trainer_reads_ahead_is_drawn_again_by_its_mend(tmp_path, monkeypatch, mend, code):
    monkeypatch.chdir(tmp_path)
    script = TRAINER.replace("Trainer(Net(), args,", """
def noisy(samples):
    x = torch.stack([one["x"] for one in samples])
    return {"x": x + torch.rand(x.shape), "labels": torch.stack([one["labels"] for one in samples])}

Trainer(Net(), args, data_collator=noisy,""")
    found = rehearse(script, tmp_path, steps=11, mend=mend)
    assert found.code == code, found.text
    assert code == 0 or found.json["first_difference"]["what"] == "batch", found.text


@pytest.mark.parametrize(("mend", "code"), [("", 0), (NO_NOTES, 1)], ids=["mended", "not mended"])
def test_groups_by_length_are_drawn_again_by_their_mend(tmp_path, monkeypatch, mend, code):
    monkeypatch.chdir(tmp_path)
    script = TRAINER.replace('"run", num_train_epochs=4,', """"run", num_train_epochs=4,
                                      train_sampling_strategy="group_by_length",
                                      remove_unused_columns=False,""").replace(
        '"labels": one.sum()[None]}', '"labels": one.sum()[None], "input_ids": [0] * (1 + number % 7)}').replace(
        "for one in x]", "for number, one in enumerate(x)]").replace(
        "Trainer(Net(), args,", """
def collate(samples):
    return {"x": torch.stack([one["x"] for one in samples]),
            "labels": torch.stack([one["labels"] for one in samples])}

Trainer(Net(), args, data_collator=collate,""")
    found = rehearse(script, tmp_path, steps=11, mend=mend)
    assert found.code == code, found.text
    assert code == 0 or found.json["first_difference"]["what"] == "batch", found.text
