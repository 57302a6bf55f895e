"""What the Trainer reads, evaluates and logs after a stop is what it does without one."""


import random

import pytest
import torch
import transformers
from transformers import DataCollatorForLanguageModeling

import holdfast
from holdfast.torch.huggingface import HoldfastTrainer

transformers.utils.logging.disable_progress_bar()
STEPS = 6  # of an epoch


class Stop(BaseException):
    """Ends a training as a kill does: nothing of the Trainer handles it."""


class Trainer(HoldfastTrainer, transformers.Trainer):
    """A Trainer that writes down what it is given, and can be stopped."""

    def __init__(self, *args, stop=None, **kwargs):
        super().__init__(*args, **kwargs)
        self.events, self.stop = [], stop

    def note(self, what, value):
        self.events.append(((what, self.state.global_step), float(value).hex()))

    def training_step(self, model, inputs, *args, **kwargs):
        if self.stop == ("step", self.state.global_step):
            raise Stop
        self.note("ids", (inputs["input_ids"] * torch.arange(1, inputs["input_ids"].shape[1] + 1)
                          ).sum())
        loss = super().training_step(model, inputs, *args, **kwargs)
        self.note("loss", loss)
        return loss

    def evaluate(self, *args, **kwargs):
        if self.stop == ("evaluation", self.state.global_step):
            raise Stop
        found = super().evaluate(*args, **kwargs)
        self.note("evaluated", found["eval_loss"])
        return found

    def log(self, logs, *args, **kwargs):
        if "loss" in logs:
            self.note("logged", logs["loss"])
        super().log(logs, *args, **kwargs)


class Texts(torch.utils.data.Dataset):
    def __init__(self, count=12):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        if index >= self.count:
            raise IndexError(index)
        made = torch.Generator().manual_seed(index)
        return {"input_ids": torch.randint(5, 50, (6 + index % 5,), generator=made)}


class Noisy(Texts):
    """Draws from a generator of its own; its collate function does from another one."""

    def __init__(self, first=5):
        super().__init__()
        self.rng, self.firsts = random.Random(5), torch.tensor([first])

    def __getitem__(self, index):
        found = super().__getitem__(index)["input_ids"].clone()
        found[0] = self.firsts[0] + self.rng.randrange(40)
        return {"input_ids": found}


class Shifted:
    """Collates, and shifts all words by a number that it draws from a generator of its own."""

    def __init__(self):
        self.rng = random.Random(6)

    def __call__(self, examples):
        batch = plain(examples)
        return {**batch, "labels": batch["labels"].clamp(max=48) + self.rng.randrange(2)}


class Tokenizer:
    """As much of a tokenizer as a collator that masks needs."""

    mask_token, mask_token_id, pad_token, pad_token_id, padding_side = "[MASK]", 1, "[PAD]", 0, "right"
    model_input_names = ["input_ids"]

    def __len__(self):
        return 50

    def pad(self, examples, **kwargs):
        width = max(len(one["input_ids"]) for one in examples)
        rows = [torch.nn.functional.pad(one["input_ids"], (0, width - len(one["input_ids"])))
                for one in examples]
        return {"input_ids": torch.stack(rows)}

    def get_special_tokens_mask(self, ids, **kwargs):
        return [0] * len(ids)

    def convert_tokens_to_ids(self, token):
        return 1


def masked(examples):
    """Masks words at random, as DataCollatorForLanguageModeling does."""
    batch = Tokenizer().pad(examples)
    batch["labels"] = batch["input_ids"].clone()
    batch["input_ids"][torch.rand(batch["input_ids"].shape) < 0.3] = 1
    return batch


def plain(examples):
    batch = Tokenizer().pad(examples)
    return {**batch, "labels": batch["input_ids"]}


def trainer_in(folder, seed=0, collate=masked, stop=None, ours=None, texts=Texts, **options):
    torch.manual_seed(seed)
    config = transformers.GPT2Config(vocab_size=50, n_positions=16, n_embd=8, n_layer=1, n_head=1)
    defaults = dict(output_dir=str(folder), per_device_train_batch_size=2, num_train_epochs=3,
                    save_steps=1, logging_steps=2, learning_rate=1e-2, use_cpu=True, report_to=[],
                    seed=7, disable_tqdm=True, save_total_limit=2, eval_strategy="epoch",
                    remove_unused_columns=False)
    args = transformers.TrainingArguments(**(defaults | options))
    collate = collate() if isinstance(collate, type) else collate
    return Trainer(transformers.GPT2LMHeadModel(config), args, train_dataset=texts(),
                   eval_dataset=Texts(4), data_collator=collate, stop=stop,
                   holdfast={"writing": holdfast.Writing(space_reserve=0), **(ours or {})})


def check(tmp_path, stops, before_resume=None, **options):
    """Compares a training that was stopped in these places with one that was not."""
    whole = trainer_in(tmp_path / "whole", **options)
    whole.train()
    parts = []
    for seed, stop in enumerate([*stops, None]):
        again = trainer_in(tmp_path / "run", seed, stop=stop, **options)
        if stop is None:
            if before_resume is not None:
                before_resume(tmp_path / "run")
            again.train(resume_from_checkpoint="auto")
        else:
            with pytest.raises(Stop):
                again.train(resume_from_checkpoint="auto")
        parts.append(again.events)
    assert [set(events) - set(whole.events) for events in parts] == [set()] * len(parts)
    assert {key for events in parts for key, _ in events} == {key for key, _ in whole.events}
    assert parts[-1] == whole.events[-len(parts[-1]):]
    assert len(parts[-1]) < len(whole.events)
    theirs = whole.model.state_dict()
    assert all(torch.equal(tensor, theirs[name])
               for name, tensor in again.model.state_dict().items())
    return again


STOPS = [("step", 2), ("step", STEPS), ("step", STEPS + 4), ("evaluation", 2 * STEPS)]

OPTIONS = {
    "masking": {},
    "groups by length": {"train_sampling_strategy": "group_by_length"},
    "groups by length, plain": {"train_sampling_strategy": "group_by_length", "collate": plain},
    "generators of its own": {"texts": Noisy, "collate": Shifted},
    "accumulated": {"gradient_accumulation_steps": 2, "stops": [("step", 2), ("step", 3),
                                                                ("step", 4), ("evaluation", 6)]},
    "uneven accumulation": {"gradient_accumulation_steps": 4, "stops": [("step", 1), ("step", 2),
                                                                        ("step", 3)]},
    "evaluations by steps": {"eval_strategy": "steps", "eval_steps": 2, "stops": [
        ("step", 3), ("evaluation", 6), ("evaluation", 8), ("step", 13)]},
    "saves by epochs": {"save_strategy": "epoch", "stops": [
        ("step", 7), ("step", 8), ("evaluation", 12)]},
    "rare saves": {"save_steps": 4, "stops": [("step", 5), ("step", 9), ("evaluation", 12)]},
    "workers": {"dataloader_num_workers": 2, "collate": plain,
                "train_sampling_strategy": "group_by_length"},
    "workers that stay": {"dataloader_num_workers": 1, "dataloader_persistent_workers": True,
                          "collate": plain, "eval_strategy": "steps", "eval_steps": 4,
                          "stops": [("step", 2), ("step", STEPS), ("step", STEPS + 4)]},
    "parts of epochs": {"max_steps": 9, "stops": [("step", 3), ("step", 7)]},
    "by the schedule": {"save_strategy": "no", "ours": {"every": "1 steps"}},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_all_that_is_read_and_logged_is_what_it_is_without_stops(tmp_path, name, caplog):
    options = dict(OPTIONS[name])
    check(tmp_path, options.pop("stops", STOPS), **options)
    assert not [line for line in caplog.messages if "data:" in line]


def test_another_dataset_of_the_same_length_is_refused(tmp_path):
    with pytest.raises(Stop):
        trainer_in(tmp_path, texts=Noisy, stop=("step", 3)).train()
    other = trainer_in(tmp_path, texts=lambda: Noisy(first=6))
    with pytest.raises(ValueError, match="the dataset is not the one of the checkpoint .*_fingerprint = "):
        other.train(resume_from_checkpoint="auto")


def test_generators_that_workers_draw_from_are_named(tmp_path, caplog):
    with pytest.raises(Stop):
        trainer_in(tmp_path, texts=Noisy, collate=plain, dataloader_num_workers=1, stop=("step", 3)).train()
    assert any("generator data.dataset.rng: a loader's workers draw" in one for one in caplog.messages)


def test_masks_of_a_real_collator_are_drawn_again(tmp_path):
    collate = DataCollatorForLanguageModeling.__new__(DataCollatorForLanguageModeling)
    collate.tokenizer, collate.mlm, collate.mlm_probability = Tokenizer(), True, 0.3
    collate.mask_replace_prob, collate.random_replace_prob = 0.8, 0.1
    collate.pad_to_multiple_of = collate.seed = collate.generator = None
    collate.return_tensors, collate.whole_word_mask, collate.tf_experimental_compile = "pt", False, 0
    try:
        collate([Texts()[0], Texts()[1]])
    except AttributeError as error:  # another version of transformers
        pytest.skip(str(error))
    check(tmp_path, STOPS, collate=collate)


def test_what_workers_draw_is_reported_as_not_exact(tmp_path, caplog):
    options = {"dataloader_num_workers": 1}
    first = trainer_in(tmp_path / "run", stop=("step", 3), **options)
    with pytest.raises(Stop):
        first.train()
    again = trainer_in(tmp_path / "run", 1, stop=("step", 4), **options)
    with pytest.raises(Stop):
        again.train(resume_from_checkpoint=True)
    expected = "what the workers of the loader draw at random"
    assert [line for line in caplog.messages if expected in line]


def flip_a_bit(run):
    """Damages a tensor of the newest step, and nothing that the Trainer's own state is in."""
    shards = [path for path in max(run.glob("step-????????")).iterdir()
              if path.suffix not in (".json", ".pin")]
    shard = max(shards, key=lambda path: path.stat().st_size)
    assert shard.stat().st_size > 4000, shards
    data = bytearray(shard.read_bytes())
    data[len(data) * 3 // 4] ^= 1
    shard.write_bytes(data)


@pytest.mark.parametrize("stop", [4, STEPS, STEPS + 1])
def test_a_damaged_newest_step_is_passed_over(tmp_path, stop, caplog):
    again = check(tmp_path, [("step", stop)], before_resume=flip_a_bit, collate=plain)
    assert again.events[0][0][1] < stop
    assert [line for line in caplog.messages if "is passed over" in line]


def test_the_best_steps_by_a_metric_of_an_evaluation_are_kept(tmp_path):
    keep = holdfast.Keep(1, best=1, metric="eval_loss")
    trainer = trainer_in(tmp_path / "run", ours={"keep": keep}, collate=plain)
    trainer.train()
    losses = {step: float.fromhex(value) for (what, step), value in trainer.events
              if what == "evaluated"}
    best = min(losses, key=losses.get)
    kept = [int(path.name[5:13]) for path in (tmp_path / "run").glob("step-????????")]
    assert best in kept and 3 * STEPS in kept and len(kept) <= 3
    assert holdfast.restore(tmp_path / "run", {}, best).metrics == {"eval_loss": losses[best]}
