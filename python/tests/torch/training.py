"""Small training scripts with all that makes a resume difficult, for the tests of
holdfast.Checkpointer.

    train(How(), 20)                                # without checkpoints: the expected results
    train(How(), 20, run="runs/1", stops=[5, 11])   # stops twice, and resumes in new objects
"""

import hashlib
import random
from dataclasses import dataclass, field

from grouped import grouped
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader

import holdfast

SAMPLES, BATCH = 32, 4
EPOCH = SAMPLES // BATCH  # the batches of an epoch
TOKENS = 12


class Samples:
    """Samples of tokens. Some tokens are random and drawn when the sample is read."""

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        tokens = (torch.arange(TOKENS) * (index % 5 + 1) + index) % 16
        noise = torch.randint(16, (TOKENS,))
        tokens = torch.where(torch.rand(TOKENS) < 0.2, noise, tokens)
        return tokens, (index + random.randrange(2)) % 4


class GPT(nn.Module):
    """A GPT with one block, a tied head and dropout."""

    def __init__(self, width=16):
        super().__init__()
        self.embed = nn.Embedding(16, width)
        self.place = nn.Embedding(TOKENS, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.drop = nn.Dropout(0.1)
        self.head = nn.Linear(width, 16, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("places", torch.arange(TOKENS), persistent=False)

    def forward(self, tokens):
        x = self.drop(self.embed(tokens) + self.place(self.places))
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (6, -1)).transpose(1, 2).chunk(3, 1)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.drop(self.out(y.transpose(1, 2).flatten(2)))
        return self.head(x + self.drop(self.down(F.gelu(self.up(self.norm2(x))))))

    def loss(self, model, batch):
        tokens, _ = batch
        return F.cross_entropy(model(tokens)[:, :-1].flatten(0, 1).float(), tokens[:, 1:].flatten())


class ResNet(nn.Module):
    """A network with convolutions, a residual connection, BatchNorm and dropout."""

    def __init__(self, width=8):
        super().__init__()
        self.stem = nn.Conv2d(1, width, 3, padding=1)
        self.conv1, self.conv2 = (nn.Conv2d(width, width, 3, padding=1) for _ in range(2))
        self.norm1, self.norm2 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)
        self.drop = nn.Dropout(0.2)
        self.head = nn.Linear(width, 4)

    def forward(self, tokens):
        x = self.stem(tokens.unflatten(-1, (1, 3, 4)).to(self.stem.weight.dtype))
        y = F.relu(self.norm1(self.conv1(x)))
        x = F.relu(x + self.norm2(self.conv2(y)))
        return self.head(self.drop(x.mean((2, 3))))

    def loss(self, model, batch):
        tokens, label = batch
        return F.cross_entropy(model(tokens).float(), label)


class WideAdam(torch.optim.Optimizer):
    """Adam with moments in fp32, whatever dtype the parameters have."""

    def __init__(self, params, lr=0.01):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["step"] = torch.zeros(())
                    state["mean"] = torch.zeros_like(p, dtype=torch.float32)
                    state["square"] = torch.zeros_like(p, dtype=torch.float32)
                grad = p.grad.float()
                state["step"] += 1
                state["mean"].lerp_(grad, 0.1)
                state["square"].lerp_(grad * grad, 0.01)
                scale = (1 - 0.99 ** state["step"]).sqrt() / (1 - 0.9 ** state["step"])
                update = state["mean"] / (state["square"].sqrt() + 1e-8) * scale
                p.copy_(p.float() - group["lr"] * update)


OPTIMIZERS = {
    "adamw": lambda params: torch.optim.AdamW(params, lr=0.01),
    "fused": lambda params: torch.optim.AdamW(params, lr=0.01, fused=True),
    "sgd": lambda params: torch.optim.SGD(params, lr=0.05, momentum=0.9),
    "wide": WideAdam,
}


@dataclass(frozen=True)
class How:
    """How a script trains."""

    net: str = "gpt"
    optimizer: str = "adamw"
    bf16: bool = False
    amp: bool = False
    warm_up: bool = False
    ema: bool = False
    accumulate: int = 1
    plain_loader: bool = False  # torch's DataLoader, made resumable
    workers: int = 0
    # Options of DDP, with which the model is wrapped on several ranks.
    ddp: dict = field(default_factory=dict)
    options: dict = field(default_factory=dict)  # options of the Checkpointer


class Script:
    """The objects that a training script makes when it starts."""

    def __init__(self, how, seed=0, rank=0, world=1):
        torch.manual_seed(seed)
        random.seed(seed)
        self.how = how
        self.net = GPT() if how.net == "gpt" else ResNet()
        if how.bf16:
            self.net.bfloat16()
        self.model = self.net
        if world > 1:
            self.model = DistributedDataParallel(self.net, **how.ddp)
        self.optimizer = OPTIMIZERS[how.optimizer](self.model.parameters())
        self.scheduler = self.scaler = self.ema = None
        if how.warm_up:
            self.scheduler = torch.optim.lr_scheduler.LinearLR(self.optimizer, 0.1, total_iters=12)
        if how.amp:
            self.scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=3)
        if how.ema:
            self.ema = AveragedModel(self.net, multi_avg_fn=get_ema_multi_avg_fn(0.9),
                                     use_buffers=True)
        self.data = self._loader(rank, world)
        torch.manual_seed(seed + 100 + rank)

    def _loader(self, rank, world):
        workers = self.how.workers
        if self.how.plain_loader:
            return holdfast.data.resumable(
                DataLoader(Samples(), BATCH, shuffle=True, num_workers=workers), epochs=None)
        return holdfast.data.loader(Samples(), BATCH, seed=3, num_workers=workers)

    def checkpointer(self, run, **options):
        return holdfast.Checkpointer(run, model=self.model, optimizer=self.optimizer,
                                     scheduler=self.scheduler, scaler=self.scaler, ema=self.ema,
                                     data=self.data,
                                     **grouped(**({"every": "1 steps", "keep": 2,
                                                   "space_reserve": 0}
                                                  | self.how.options | options)))

    def step(self, number, batch):
        """Trains on one micro-batch. Returns its loss."""
        with torch.autocast("cpu", torch.bfloat16, enabled=self.how.amp):
            loss = self.net.loss(self.model, batch) / self.how.accumulate
        (self.scaler.scale(loss) if self.scaler else loss).backward()
        if (number + 1) % self.how.accumulate == 0:
            self._update()
        return loss

    def _update(self):
        if self.scaler:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            self.optimizer.step()
        if self.scheduler:
            self.scheduler.step()
        self.optimizer.zero_grad()
        if self.ema:
            self.ema.update_parameters(self.net)

    def train(self, steps, start=0, checkpointer=None):
        """Trains. Returns the losses by step, as hexadecimal numbers."""
        losses = {}
        if start >= steps:
            return losses
        for step, batch in enumerate(self.data, start):
            loss = self.step(step, batch)
            losses[step] = loss.item().hex()
            if checkpointer is not None:
                checkpointer.step(step, loss=loss)
            if step + 1 == steps:
                return losses

    def tensors(self):
        """All tensors that training continues from, by name."""
        found = {f"model.{name}": t for name, t in self.net.named_parameters()}
        found |= {f"model.{name}": t for name, t in self.net.named_buffers()}
        for name, parameter in self.net.named_parameters():
            for slot, value in self.optimizer.state[parameter].items():
                found[f"optimizer.{name}.{slot}"] = torch.as_tensor(value)
        if self.ema:
            found |= {f"ema.{name}": t for name, t in self.ema.state_dict().items()}
        return {name: t.detach() for name, t in found.items()}

    def digests(self):
        """Digests of every tensor and of every other value that training depends on."""
        made = {name: digest(tensor) for name, tensor in self.tensors().items()}
        made["generators"] = digest(torch.get_rng_state()) + repr(random.random())
        made["lr"] = [group["lr"] for group in self.optimizer.param_groups]
        for key in ("scheduler", "scaler"):
            if getattr(self, key):
                made[key] = repr(getattr(self, key).state_dict())
        return made


def settle_matmul():
    """Fixes the matrix multiplication.
    Otherwise torch may use another one for fp32 after bf16 failed."""
    torch.backends.mkldnn.set_flags(False)


def digest(tensor):
    data = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return hashlib.sha256(data).hexdigest()[:16]


def train(how, steps, run=None, stops=(), rank=0, world=1):
    """Starts a script again after each stop. Returns its losses by step, and digests at the end."""
    settle_matmul()
    losses = {}
    for life, stop in enumerate([*(at + 1 for at in stops), steps]):
        script = Script(how, 1000 * life, rank, world)  # resume() must replace what this seed draws
        if run is None:
            losses |= script.train(stop)
            continue
        with script.checkpointer(run) as checkpointer:
            start = checkpointer.resume()
            assert (start > 0) == (life > 0)
            assert checkpointer.report.exact and not checkpointer.report.inexact
            seen = script.train(stop, start, checkpointer)
        again = {step: loss for step, loss in seen.items() if step in losses}
        assert again == {step: losses[step] for step in again}
        losses |= seen
    return losses, script.digests()


class Toy:
    """The smallest training script."""

    def __init__(self, model=None, kind=torch.optim.AdamW, size=4):
        self.model = model or nn.Sequential(nn.Linear(size, 3), nn.Linear(3, 2))
        self.optimizer = kind(self.model.parameters(), lr=0.1)

    def step(self):
        for parameter in self.model.parameters():
            parameter.grad = torch.ones_like(parameter)
        self.optimizer.step()

    def checkpointer(self, run, **options):
        return holdfast.Checkpointer(run, model=self.model,
                                     **grouped(**({"every": "1 steps", "space_reserve": 0,
                                                   "optimizer": self.optimizer} | options)))

    def train(self, checkpointer, steps):
        for step in steps:
            self.step()
            checkpointer.step(step)

    def state(self):
        """Copies of all tensors, and the options and slot names of the optimizer."""
        slots = [sorted(state) for state in self.optimizer.state.values()]
        return ([t.detach().clone() for t in self.model.state_dict().values()],
                [{k: v for k, v in group.items() if k != "params"}
                 for group in self.optimizer.param_groups], slots)


def clear(error, *words):
    """Checks that the error is one short sentence that contains these words. Returns True."""
    text = str(error.value)
    assert "\n" not in text and len(text) < 400, text
    assert all(word in text for word in words), text
    return True
