"""`holdfast rehearse` finds what would come back wrong if a part of Holdfast were missing."""

import pytest
from long_tests import first_of
from rehearsed import rehearse, rehearse_idiom

# Takes the search for generators out, as if nobody looked for those that were not given.
NO_SEARCH = """
from holdfast.torch.state.saved_generators import SavedGenerators
SavedGenerators.look = lambda self: None
"""
# Counts every pass over a loader as an epoch that trains.
ALL_PASSES_TRAIN = """
from holdfast.torch.data.base_loader import Loader
Loader.follow = lambda self: None
"""
# Takes out what is known of epochs that are left early, by `break`.
NO_ENDS = """
from holdfast.torch.data.epoch_ends import EpochEnds
EpochEnds.limit = lambda self, one: None
"""
# Does not notice that nobody holds an iterator any more, as behind next(iter(loader)).
NO_LETTING_GO = """
from holdfast.torch.data.passes import PassIterator
del PassIterator.__del__
"""
# Does not notice that itertools.cycle goes on with the batches that it has kept.
NO_CYCLE = """
from holdfast.torch.data.plain_position import PlainPosition
PlainPosition._is_cycled = lambda self, one: False
"""
# Forgets where a killed process has left its first epoch.
NO_LEFT_EPOCH = """
from holdfast.torch.data.left_epoch import LeftEpoch
LeftEpoch.read = lambda self, position: None
"""
# Takes the search for optimizers, schedulers and scalers out that were not given.
NO_FINDER = """
from holdfast.torch.loop.unknown_state import UnknownState
UnknownState.look = UnknownState.look_for_schedulers = lambda self: None
"""
# Takes only their warnings out: the search goes on.
NO_WARNING = """
from holdfast.torch.loop.messages import Messages
Messages.warn_once = lambda self, text, *values: None
"""
# Takes out that a wrong place of ck.step() is seen.
NO_PLACE = """
from holdfast.torch.loop.step_place import StepPlace
StepPlace.next_call = lambda self, loader: ""
"""
# Lets the background copy a save that nobody settles before a write by hand.
NO_SETTLE = """
from holdfast.torch.loop.model_changes import ModelChanges
ModelChanges.after_save = lambda self, *told: False
"""


# Each row has a script, what takes its mend out, and the steps to kill in, where () means the usual steps.
MENDED = [
    ("generator_of_script", NO_SEARCH, ()),
    ("generators_nobody_gave", NO_SEARCH, ()),
    ("break_by_count", NO_LEFT_EPOCH, ()),  # also after the last step of the first epoch
    ("validation_on_training_loader", ALL_PASSES_TRAIN, ()),
    ("break_by_count", NO_ENDS, (8,)),  # after the second step of the third epoch
    ("next_iter", NO_LETTING_GO, ()),
    ("cycle", NO_CYCLE, ()),
]


@pytest.mark.parametrize(("name", "mend", "at"), MENDED)
def test_what_a_mend_prevents_is_found_without_it(tmp_path, name, mend, at):
    found = rehearse_idiom(name, tmp_path, mend, steps=12, at=at)
    assert found.code == 1 and "NOT exact" in found.text, found.text
    if mend is not ALL_PASSES_TRAIN:
        assert found.json["first_difference"]["what"] == "batch", found.text


@pytest.mark.parametrize(("name", "at"), first_of([(name, at) for name, _, at in MENDED], 4))
def test_with_the_mend_it_is_exact(tmp_path, name, at):
    found = rehearse_idiom(name, tmp_path, steps=12, at=at)
    assert found.code == 0, found.text


@pytest.mark.parametrize("name", ["step_before_update", "step_before_scheduler"])
def test_a_wrong_place_of_step_is_found_also_if_nobody_warns(tmp_path, name):
    """A script in which it is wrong cannot be made exact: the mend is a warning, and is taken out here."""
    found = rehearse_idiom(name, tmp_path, NO_PLACE, steps=12)
    assert found.code == 1 and "NOT exact" in found.text, found.text
    assert found.json["first_difference"] and "ck.step() comes before" not in found.text


def test_a_generator_that_is_not_saved_is_named_with_what_to_write(tmp_path):
    found = rehearse_idiom("generator_of_script", tmp_path, NO_SEARCH, steps=12)
    assert found.json["cause"]["name"] == "__main__.rng"
    assert "<- __main__.rng (numpy Generator, not saved)" in found.text
    assert 'Checkpointer(..., objects={"rng": rng})' in found.text


@pytest.mark.parametrize("kind", ["optimizer", "scheduler"])
def test_what_was_forgotten_shows_in_the_bits_also_if_nobody_looks_for_it(tmp_path, kind):
    found = rehearse_idiom(f"forgotten_{kind}", tmp_path, NO_FINDER, steps=8)
    assert found.code == 1 and "NOT exact" in found.text, found.text
    assert found.json["first_difference"] and not found.json["not_saved"], found.text


@pytest.mark.parametrize("kind", ["optimizer", "scheduler", "scaler"])
def test_what_was_forgotten_is_named_with_the_option_to_write(tmp_path, kind):
    """Also if no warning is printed. A scaler is known by this alone: it changes no bit for many steps."""
    found = rehearse_idiom(f"forgotten_{kind}", tmp_path, NO_WARNING, steps=8)
    assert found.code == 1 and "NOT exact" in found.text, found.text
    line, = found.json["not_saved"]
    assert line.startswith(f"{kind}: ") and line.endswith(f"expected it in {kind}=")
    assert f"not saved: {line}" in found.text


def test_equal_bits_are_not_called_exact_where_a_scaler_is_missing(tmp_path):
    found = rehearse_idiom("forgotten_scaler", tmp_path, steps=8)
    assert found.code == 1 and found.text.count("expected it in scaler=") == 1
    assert found.json["first_difference"] is None  # the factor is a power of two, and changes no bit
    assert "EXACT" not in found.text and "yet state is missing" in found.text


BY_HAND = """
import torch
from torch import nn
import holdfast
torch.manual_seed(0)
model = nn.Linear(3000, 3000)
ck = holdfast.Checkpointer("run", model=model, writing=holdfast.Writing(guard="off"))
for step in range(ck.resume(), 20):
    rows = model.weight.data.numpy()
    rows[-1] = step  # at once, while the background may still copy the rows before it
    rows[:-1] *= 0.9
    ck.step(step, loss=float(rows[0, 0]))
"""


def test_an_update_by_hand_that_tears_a_save_is_found(tmp_path):
    found = rehearse(BY_HAND, tmp_path, mend=NO_SETTLE)
    assert found.code == 1, found.text
    assert found.json["cause"]["name"] == "model.weight"


def test_an_update_by_hand_is_exact(tmp_path):
    assert rehearse(BY_HAND, tmp_path).code == 0


def test_a_loop_that_begins_its_epochs_again_is_named(tmp_path):
    found = rehearse_idiom("too_many_epochs_untold", tmp_path, steps=12)
    assert found.code == 1 and "the loop's epoch is 0 after a resume in epoch 1" in found.text
    assert "EXACT" not in found.text.replace("NOT exact", "")


def test_a_validation_that_a_restart_makes_again_is_no_other_batch(tmp_path):
    found = rehearse_idiom("validation_before_training", tmp_path, steps=12)
    assert found.code == 0, found.text


UNNAMED_EPOCHS = """
import torch
from torch import nn
from torch.utils.data import DataLoader
import holdfast
torch.manual_seed(0)
model = nn.Linear(4, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(torch.randn(20, 4), batch_size=4, shuffle=True)
ck = holdfast.Checkpointer("run", model=model, optimizer=opt, data=loader)
step = ck.resume()
for _ in range(FIRST, 2):
    for batch in loader:
        loss = model(batch).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        ck.step(step, loss=loss)
        step += 1
"""


@pytest.mark.parametrize(("first", "code"), [("0", 1), ("loader.epoch", 0)])
def test_a_restarted_script_that_makes_too_many_steps_is_found_at_its_end(tmp_path, first, code):
    found = rehearse(UNNAMED_EPOCHS.replace("FIRST", first), tmp_path, steps=12)
    assert found.code == code, found.text
    assert ("step 10, which the undisturbed run did not make" in found.text) is bool(code)
    assert ("range(loader.epoch, epochs)" in found.text) is bool(code)
