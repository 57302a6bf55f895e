"""The trainings of elastic_job.py: what it builds, which data it reads, and how it makes a step."""

import json
import sys
from argparse import Namespace
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import Schedule1F1B
from torch.nn.parallel import DistributedDataParallel

import holdfast

sys.path.insert(0, str(Path(__file__).parents[3] / "examples"))
import train_gpt
import train_resnet

ARGS = Namespace(width=32, head=8, layers=4, dropout=0.0, context=16, batch=24, device="cpu")
SCALE = 2.0**10  # that of a GradScaler at first


class Model(train_gpt.GPT):
    """With buffers that no state_dict has, and that count."""

    def __init__(self, args, forgets):
        super().__init__(args)
        self.register_buffer("table", torch.arange(args.width) / args.width, persistent=False)
        self.register_buffer("seen", torch.zeros((), dtype=torch.long))
        if forgets:
            self.forgotten = torch.zeros(3)

    def forward(self, x):
        self.seen += 1
        return super().forward(x) + 0 * self.table[0]


class Numbered(torch.utils.data.Dataset):
    """Each sample of another dataset with its number."""

    def __init__(self, data):
        self.data = data

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        return (*self.data[index], index)


class Gpt:
    """A GPT that is cut by tp, pp and dp: by DDP if it is only cut by dp, else by FSDP2."""

    def __init__(self, how, worker):
        self._how, self._worker = how, worker
        self.data = Numbered(train_gpt.Windows(train_gpt.TEXT.read_bytes()[:4000], ARGS.context))

    def build(self, mesh):
        how, is_change = self._how, torch.get_default_device().type == "meta"
        if "raises" in how and is_change and mesh.shape == (2, 2, 1) and self._worker == 1:
            raise ValueError("there is no such layer")
        is_other = "other model" in how and is_change and mesh.shape[0] > 1
        args = Namespace(**{**vars(ARGS), "width": 16}) if is_other else ARGS
        whole = train_gpt.GPT(args) if "no buffers" in how else Model(args, "forgets" in how and is_change)
        model = train_gpt.cut(whole, mesh)
        schedule = train_gpt.pipeline(model, mesh, args) if mesh.shape[0] > 1 else None
        if schedule is not None and "1f1b" in how:
            schedule = Schedule1F1B(schedule._stage, train_gpt.MICRO_BATCHES, loss_fn=train_gpt.loss_of)
        parts = {"model": model, "schedule": schedule}
        if "average" in how:
            average = train_gpt.GPT(args)
            parts["average"] = average if mesh.shape[2] == 1 else train_gpt.cut(average, mesh)
        return parts

    def optimizers(self, job):
        """The optimizer with two groups, its schedule, and no scaler."""
        named = dict(job.model.named_parameters())
        optimizer = torch.optim.AdamW(
            [{"params": [p for p in named.values() if p.dim() > 1]},
             {"params": [p for p in named.values() if p.dim() < 2], "weight_decay": 0.0}],
            lr=1e-3, foreach=False)
        return optimizer, torch.optim.lr_scheduler.LinearLR(optimizer, 0.01, total_iters=20), None

    def backward(self, job, weight, scaler, x, y):
        return train_gpt.backward(job.model, job.schedule, x, y)


class Vision:
    """A ResNet with a GradScaler: by FSDP2 on an even number of replicas, by DDP on an odd one."""

    def __init__(self, how, worker):
        self.data = Numbered(train_resnet.Shapes(240))

    def build(self, mesh):
        model, ranks = train_resnet.resnet(4, 0.0), mesh.shape[1]
        if ranks % 2:
            return DistributedDataParallel(model, process_group=mesh.get_group("dp"))
        for block in model:
            if isinstance(block, train_resnet.Residual):
                fully_shard(block, mesh=mesh["dp"])
        return fully_shard(model, mesh=mesh["dp"])

    def optimizers(self, job):
        optimizer = torch.optim.SGD(job.model.parameters(), lr=0.02, momentum=0.9)
        return (optimizer, torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=20),
                torch.amp.GradScaler("cpu", init_scale=SCALE, growth_interval=5))

    def backward(self, job, weight, scaler, images, labels):
        loss = F.cross_entropy(job.model(images), labels)
        scaler.scale(loss * weight).backward()
        return loss.detach()


class Language:
    """A Llama of Hugging Face with tied weights: by FSDP2 on an even number of replicas, by DDP on an odd one."""

    def __init__(self, how, worker):
        self.data = Numbered(train_gpt.Windows(train_gpt.TEXT.read_bytes()[:4000], ARGS.context))

    def build(self, mesh):
        from transformers import LlamaConfig, LlamaForCausalLM

        model, ranks = LlamaForCausalLM(LlamaConfig(
            vocab_size=256, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=64, tie_word_embeddings=True)), mesh.shape[1]
        if ranks % 2:
            return DistributedDataParallel(model, process_group=mesh.get_group("dp"))
        for layer in model.model.layers:
            fully_shard(layer, mesh=mesh["dp"])
        return fully_shard(model, mesh=mesh["dp"])

    def optimizers(self, job):
        optimizer = torch.optim.AdamW(job.model.parameters(), lr=1e-3, foreach=False)
        return optimizer, torch.optim.lr_scheduler.LinearLR(optimizer, 0.01, total_iters=20), None

    def backward(self, job, weight, scaler, x, y):
        loss = train_gpt.loss_of(job.model(input_ids=x).logits, y)
        loss.backward()
        return loss.detach()


def make_step(training, job, loader, optimizer, schedule, scaler, made):
    """The function of one step, for ck.run(). It returns the loss of all replicas, and notes in `made` of which
    samples the step was: others than the loop's if ranks were lost in it."""
    def step(*batch):
        *batch, samples = batch
        made[:] = samples.tolist()
        weight = getattr(loader, "weight", 1.0)
        loss = training.backward(job, weight, scaler, *batch)
        if loss is not None:
            loss *= weight
            dist.all_reduce(loss, group=job.mesh.get_group("dp"))
            loss /= job.mesh.shape[1]
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update()
        schedule.step()
        optimizer.zero_grad()
        return loss

    return step


def then_average(step, job):
    """The step, and behind it the average of the model follows it."""
    def both(*batch):
        loss = step(*batch)
        with torch.no_grad():
            for mean, parameter in zip(job.average.parameters(), job.model.parameters(), strict=True):
                mean.lerp_(parameter, 0.1)
        return loss

    return both


LISTED = 1_000_000  # is added to the numbers of the samples in a mixture that are no lines


def write_lines(path, data):
    """Writes the samples of a Numbered text as lines, for data_of()."""
    path.write_text("".join(json.dumps([one.tolist() if torch.is_tensor(one) else one for one in data[n]]) + "\n"
                            for n in range(len(data))))


def data_of(training, lines, how):
    """What the job reads."""
    if not {"files", "mixed"} & {*how}:
        return training.data
    files = holdfast.data.Files(lines, transform=read_line)
    if "mixed" not in how:
        return files
    listed = [(x, y, n + LISTED) for x, y, n in (training.data[n] for n in range(100))]
    return holdfast.data.mix({"files": (files, 5), "listed": (listed, 3)})


def read_line(line):
    x, y, number = json.loads(line)
    return torch.tensor(x), torch.tensor(y), number


def training_of(how, worker):
    """The training that the words name."""
    kind = Vision if "vision" in how else Language if "hugging face" in how else Gpt
    return kind(how, worker)
