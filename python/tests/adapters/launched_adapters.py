"""Trainings by other libraries, for the tests of `holdfast launch`:

    launched_adapters.py LIBRARY RUN KILL

LIBRARY is lightning, huggingface or accelerate. Rank 1 ends itself once, in batch KILL of a process
that began with the first batch; -1: it does not. RUN.end.R has a digest of what rank R ends with.
"""

import hashlib
import os
import signal
import sys
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

import holdfast

warnings.simplefilter("ignore")
library, run, kill = sys.argv[1], sys.argv[2], int(sys.argv[3])
rank = int(os.environ["RANK"])
WRITING = holdfast.Writing(space_reserve=0)
batches = 0


def here():
    global batches
    batches += 1
    mark = Path(f"{run}.killed")
    if batches == kill and rank == 1 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)


def finish(model):
    made = hashlib.sha256(b"".join(one.detach().numpy().tobytes() for one in model.parameters()))
    Path(f"{run}.end.{rank}").write_text(made.hexdigest())


def lightning():
    import lightning.pytorch as pl

    from holdfast.torch.lightning import HoldfastCallback

    class Model(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.2))

        def training_step(self, batch, _):
            here()
            return self.net(batch[0]).pow(2).mean()

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=1e-2)

    pl.seed_everything(0)
    data = torch.utils.data.TensorDataset(torch.arange(96.0).reshape(24, 4) / 40)
    model = Model()
    trainer = pl.Trainer(max_epochs=1, accelerator="cpu", devices=2, strategy="ddp", logger=False,
                         enable_progress_bar=False, enable_model_summary=False,
                         enable_checkpointing=False, default_root_dir=run,
                         callbacks=[HoldfastCallback(run, every="2 steps", writing=WRITING)])
    trainer.fit(model, holdfast.data.loader(data, 4, seed=3, epochs="each"))
    finish(model)


def huggingface():
    import transformers

    from holdfast.torch.huggingface import HoldfastTrainer

    transformers.utils.logging.disable_progress_bar()

    class Trainer(HoldfastTrainer, transformers.Trainer):
        def training_step(self, *args, **kwargs):
            here()
            return super().training_step(*args, **kwargs)

    class Texts(torch.utils.data.Dataset):
        def __len__(self):
            return 24

        def __getitem__(self, index):
            ids = (torch.arange(8) * index) % 32
            return {"input_ids": ids, "labels": ids}

    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=32, n_positions=8, n_embd=8, n_layer=1, n_head=1)
    args = transformers.TrainingArguments(
        output_dir=run, per_device_train_batch_size=2, max_steps=6, save_steps=2, learning_rate=1e-2,
        use_cpu=True, report_to=[], seed=7, disable_tqdm=True, logging_steps=100)
    trainer = Trainer(transformers.GPT2LMHeadModel(config), args, train_dataset=Texts(),
                      holdfast={"writing": WRITING})
    trainer.train(resume_from_checkpoint="auto")
    finish(trainer.model)


def accelerate():
    from accelerate import Accelerator
    from accelerate.utils import DataLoaderConfiguration

    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(
        use_stateful_dataloader=True))
    torch.manual_seed(0)
    data = torch.utils.data.TensorDataset(torch.arange(96.0).reshape(24, 4) / 40)
    net = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.2))
    model, optimizer, loader = accelerator.prepare(
        net, torch.optim.AdamW(net.parameters(), lr=1e-2),
        torch.utils.data.DataLoader(data, 2, shuffle=True))

    def train(batch):
        loss = model(batch[0]).pow(2).mean()
        accelerator.backward(loss)
        here()
        optimizer.step()
        optimizer.zero_grad()

    ck = holdfast.Checkpointer(run, model=model, optimizer=optimizer.optimizer, data=loader,
                               every="2 steps", writing=WRITING)
    for step, batch in enumerate(loader, ck.resume()):
        ck.run(train, batch)
        ck.step(step)
    ck.close()
    finish(net)


{"lightning": lightning, "huggingface": huggingface, "accelerate": accelerate}[library]()
if dist.is_initialized():
    dist.destroy_process_group()
