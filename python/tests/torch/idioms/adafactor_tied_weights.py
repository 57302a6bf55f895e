"""A language model whose head shares the weights of its embedding, with Adafactor.

exact
"""

import idiom
import torch
from torch import nn
from torch.utils.data import DataLoader

import holdfast


class Tied(nn.Module):
    def __init__(self, words=16, width=8):
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.block = nn.TransformerEncoderLayer(width, 2, 16, dropout=0.1, batch_first=True)
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        return self.head(self.block(self.embed(tokens), src_mask=mask, is_causal=True))


torch.manual_seed(10)
corpus = torch.randint(0, 16, (35, 7))
model = Tied()
opt = torch.optim.Adafactor(model.parameters(), lr=1e-2)
loader = DataLoader(corpus, batch_size=5, shuffle=True)
ck = holdfast.Checkpointer(idiom.RUN, model=model, optimizer=opt, data=loader, every="1 steps")
step = ck.resume()
for _ in range(loader.epoch, 2):
    for tokens in loader:
        logits = model(tokens[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        idiom.made(step, loss)
        ck.step(step, loss=loss)
        step += 1
ck.close()
