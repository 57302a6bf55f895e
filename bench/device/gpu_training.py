"""The training that gpu_bench.py measures: a GPT with steps of about 100 ms."""

import contextlib
import time
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, c = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, c // self.heads).unbind(2)
        y = F.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, c))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Gpt(nn.Module):
    def __init__(self, layers: int, width: int = 1024, vocabulary: int = 32000) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.place = nn.Embedding(1024, width)
        self.blocks = nn.ModuleList(Block(width, 16) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens) + self.place.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.embed.weight)


class Job:
    """A model, its optimizer, and one step of their training."""

    update: Callable[[], contextlib.AbstractContextManager] = contextlib.nullcontext

    def __init__(self, layers: int) -> None:
        torch.manual_seed(0)
        with torch.device("cuda"):
            self.model = Gpt(layers)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        self.tokens = torch.randint(0, 32000, (8, 1024), device="cuda")
        self.last_steps = [torch.cuda.Event() for _ in range(2)]
        self.graph = self._capture(1)
        self.step()
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(3):
            self.step()
        torch.cuda.synchronize()
        passes = max(1, round(0.1 / ((time.perf_counter() - start) / 3)))
        self.graph = self._capture(passes)

    def _pass(self) -> None:
        # The cache of autocast would keep casts of weights from before an update.
        with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
            logits = self.model(self.tokens)
            loss = F.cross_entropy(logits.flatten(0, 1), self.tokens.flatten())
        loss.backward()

    def _capture(self, passes: int) -> torch.cuda.CUDAGraph:
        """So many forward and backward passes, as a graph that is launched by one call: a step then
        takes the time of the GPU, also while the host is slow to launch thousands of kernels."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self._pass()  # allocates what kernels keep, which a capture may not
        torch.cuda.current_stream().wait_stream(side)
        # Gradients that are made inside a graph are written anew by each launch of it.
        self.optimizer.zero_grad(set_to_none=True)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(passes):
                self._pass()
        return graph

    def step(self) -> None:
        # The host waits for the step before the last, as a loop that looks at its losses does. If it
        # were further ahead, the driver would make it wait, and every other thread's call with it.
        self.last_steps[0].synchronize()
        self.graph.replay()
        with self.update():
            self.optimizer.step()
        self.last_steps.append(self.last_steps.pop(0))
        self.last_steps[-1].record()

    def state(self) -> dict:
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def tensors(self) -> list[torch.Tensor]:
        """All parameters and moments."""
        tensors = [parameter.detach() for parameter in self.model.parameters()]
        for slots in self.optimizer.state.values():
            tensors += [value for value in slots.values() if isinstance(value, torch.Tensor)]
        return tensors

    @property
    def bytes(self) -> int:
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors())
