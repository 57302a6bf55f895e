"""A BatchSampler and a collate_fn of one's own, which pads texts of unequal length.

exact
"""

import idiom
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_sequence
from torch.utils.data import BatchSampler, DataLoader, RandomSampler

import holdfast


def pad(samples):
    samples = sorted(samples, key=len, reverse=True)
    lengths = torch.tensor([len(one) for one in samples])
    labels = torch.tensor([int(one.sum()) % 2 for one in samples])
    return pad_sequence(samples, batch_first=True), lengths, labels


torch.manual_seed(29)
texts = [torch.randint(1, 9, (length % 5 + 2,)) for length in range(30)]
batches = BatchSampler(RandomSampler(texts), batch_size=4, drop_last=True)
loader = DataLoader(texts, batch_sampler=batches, collate_fn=pad)
model = nn.ModuleDict({"embed": nn.Embedding(9, 6, padding_idx=0),
                       "gru": nn.GRU(6, 6, batch_first=True), "head": nn.Linear(6, 2)})
opt = torch.optim.Adam(model.parameters(), lr=1e-2)
ck = holdfast.Checkpointer(idiom.RUN, model=model, optimizer=opt, data=loader, every="1 steps")
step = ck.resume()
for _ in range(loader.epoch, 2):
    for tokens, lengths, labels in loader:
        packed = pack_padded_sequence(model["embed"](tokens), lengths, batch_first=True)
        _, hidden = model["gru"](packed)
        loss = nn.functional.cross_entropy(model["head"](hidden[-1]), labels)
        opt.zero_grad()
        loss.backward()
        opt.step()
        idiom.made(step, loss)
        ck.step(step, loss=loss)
        step += 1
ck.close()
