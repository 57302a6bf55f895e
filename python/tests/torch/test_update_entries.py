"""What the updates of a rank consume is kept as entries of a log, and made again from there: with every optimizer
the bits are the same, and what cannot be made again is refused in a sentence. And ranks choose what they keep."""

import copy
import os

import pytest
import torch
from torch import nn

import holdfast
from holdfast.torch.loop.optimizer_hooks import hook_optimizer_steps
from holdfast.torch.recover import messages
from holdfast.torch.recover.call_log import CallLog
from holdfast.torch.recover.messages import Messages
from holdfast.torch.recover.updates import Updates, key_of, make_again, plan_updates
from holdfast.torch.state.training_state import TrainingState

OPTIMIZERS = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-2), "fused": lambda p: torch.optim.AdamW(p, lr=1e-2, fused=True),
    "amsgrad": lambda p: torch.optim.Adam(p, lr=1e-2, amsgrad=True, weight_decay=0.1),
    "tensor": lambda p: torch.optim.AdamW(p, lr=torch.tensor(1e-2), foreach=False),
    "sgd": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9, nesterov=True), "plain": lambda p: torch.optim.SGD(p, lr=1e-2),
    "adamax": lambda p: torch.optim.Adamax(p, lr=1e-2), "nadam": lambda p: torch.optim.NAdam(p, lr=1e-2),
    "radam": lambda p: torch.optim.RAdam(p, lr=1e-2), "rmsprop": lambda p: torch.optim.RMSprop(p, lr=1e-2, centered=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=1e-2), "adadelta": lambda p: torch.optim.Adadelta(p),
    "asgd": lambda p: torch.optim.ASGD(p), "rprop": lambda p: torch.optim.Rprop(p),
    "adafactor": lambda p: torch.optim.Adafactor(p), "sparse adam": lambda p: torch.optim.SparseAdam(p),
}
STEPS = 6


class Kept:
    """A log and its gate in one process: a rank that is its own buddy."""

    def __init__(self):
        self.native, self.rank = holdfast._native.CallLog(), 0

    def pass_on(self, log, key, text, parts):
        log.put(key, text, parts)
        return text


class Job:
    """A training with an Updates, whose hooks are those of a Checkpointer."""

    def __init__(self, make=OPTIMIZERS["adamw"], layer=nn.Linear):
        torch.manual_seed(0)
        self.model = nn.Sequential(layer(8, 12), nn.LayerNorm(12), nn.Linear(12, 4)) if layer is nn.Linear else layer(9, 4)
        self.optimizer = make(self.model.parameters())
        self.state = TrainingState(self.model, self.optimizer, {}, None, holdfast.Layout())
        self.log, self.update = Kept(), 0
        self.updates = Updates(self.log, self.state)
        self.updates.look_from_here()
        self.hooks = hook_optimizer_steps(self.before, self.after)

    def before(self, optimizer, args, kwargs):
        if optimizer is self.optimizer and self.update:
            if not self.has_passed:
                self.pass_gate(optimizer)
            self.updates.begin_update(optimizer)

    def pass_gate(self, optimizer):
        self.has_passed = True
        self.updates.prepare(self.update, optimizer, [])
        self.updates.pass_on(self.log, self.update)

    def after(self, optimizer):
        if optimizer is self.optimizer and self.update:
            self.updates.end_update(optimizer, self.update)

    def gradients(self):
        if isinstance(self.model, nn.Embedding):
            return self.model(torch.randint(9, (5,))).pow(2).sum().backward()
        self.model(torch.randn(6, 8)).pow(2).mean().backward()

    def begin(self):
        self.update += 1
        self.has_passed = False
        self.gradients()

    def step(self):
        self.begin()
        self.optimizer.step()
        self.optimizer.zero_grad()


@pytest.fixture
def made():
    """Makes jobs, whose hooks are removed at the end."""
    jobs = []

    def make(*args, **kwargs):
        jobs.append(Job(*args, **kwargs))
        return jobs[-1]

    yield make
    for job in jobs:
        for hook in job.hooks:
            hook.remove()


def bits(job):
    slots = [value for one in job.optimizer.state.values() for value in one.values() if isinstance(value, torch.Tensor)]
    return [one.detach().numpy().tobytes() for one in (*job.model.parameters(), *slots)]


@pytest.mark.parametrize("name", [name for name in OPTIMIZERS if name != "sparse adam"])
def test_updates_that_are_made_again_have_the_same_bits(made, name):
    job, other = made(OPTIMIZERS[name]), made(OPTIMIZERS[name])
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(job.optimizer, STEPS)
    kept = []
    for _ in range(STEPS):
        job.step()
        schedule.step()
        kept.append((bits(job), copy.deepcopy(job.model.state_dict()), copy.deepcopy(job.optimizer.state_dict())))
    assert job.updates.why_not == "" and job.updates.peer_said == {"refused": "", "made": STEPS - 1}
    make_again(job.log, other.state, 0, 0, STEPS)
    assert bits(other) == kept[-1][0]
    later = made(OPTIMIZERS[name])
    later.model.load_state_dict(kept[2][1])
    later.optimizer.load_state_dict(kept[2][2])
    make_again(job.log, later.state, 0, 3, STEPS)
    assert bits(later) == kept[-1][0]


def test_where_there_was_no_update_none_is_made(made):
    job, other = made(), made()
    job.step()
    job.begin()
    job.pass_gate(None)
    job.optimizer.zero_grad()
    job.step()
    make_again(job.log, other.state, 0, 0, 3)
    assert bits(other) == bits(job)


def scaled(job):
    job.begin()
    job.optimizer.grad_scale = torch.tensor(2.0)  # as a GradScaler gives it to fused optimizers
    job.pass_gate(job.optimizer)


def clips_late(job):
    job.optimizer.register_step_pre_hook(lambda *_: nn.utils.clip_grad_norm_(job.model.parameters(), 1e-3) and None)
    job.step()


def clamps(job):
    job.step()
    with torch.no_grad():
        job.model[0].weight.clamp_(-0.1, 0.1)
    job.step()


def several(job):
    job.begin()
    job.pass_gate(job.optimizer)
    job.optimizer.step()
    job.optimizer.step()


def another(job):
    job.begin()
    job.pass_gate(torch.optim.SGD(job.model.parameters()))


def asks(job):
    job.optimizer.register_step_pre_hook(lambda *_: job.updates.note_call("allreduce"))
    job.step()


@pytest.mark.parametrize("act, why", [
    (scaled, "its optimizer divides gradients by the scale in its update"),
    (clips_late, "gradients change between the gate and the end of the update"),
    (clamps, "0.weight: written to outside of an optimizer"),
    (several, "a step makes several updates behind one gate; expected one ck.run() for each"),
    (another, "an optimizer that the Checkpointer was not given makes the update"),
    (asks, "its optimizer calls allreduce of other ranks in its update"),
])
def test_what_cannot_be_made_again_is_refused_in_a_sentence(made, act, why):
    job = made()
    act(job)
    assert why in job.updates.why_not
    job.pass_gate(None)
    assert why in job.updates.peer_said["refused"], "the buddy was not told"
    with pytest.raises(LookupError, match="update [0-9]+: "):
        make_again(job.log, made().state, 0, job.update - 1, job.update)


def test_an_optimizer_that_draws_random_numbers_is_refused(made):
    class Noisy(torch.optim.SGD):
        def step(self, closure=None):
            torch.rand(1)
            return super().step(closure)

    job = made(lambda parameters: Noisy(parameters, lr=1e-2))
    job.step()
    assert job.updates.why_not == "its optimizer draws random numbers in its update"


def test_sparse_gradients_are_refused(made):
    job = made(OPTIMIZERS["sparse adam"], lambda *size: nn.Embedding(*size, sparse=True))
    job.step()
    assert job.updates.why_not == "a gradient is sparse"


def test_an_optimizer_whose_step_calls_that_of_its_base_class_makes_one_update(made):
    class Named(torch.optim.SGD):
        def step(self, closure=None):
            return super().step(closure)

    made(OPTIMIZERS["plain"])  # since then, the steps of the base class have hooks, too
    job = made(lambda parameters: Named(parameters, lr=1e-2))
    job.step()
    assert job.updates.why_not == ""


def damaged(log, update):
    text, body = log.native.find(key_of(update, 0))
    return text, torch.frombuffer(bytearray(body), dtype=torch.uint8)


def test_an_entry_of_another_update_or_with_other_threads_is_refused(made):
    job, other = made(), made()
    for _ in range(4):
        job.step()
    text, data = damaged(job.log, 2)
    job.log.native.put(key_of(3, 0), text, [(data.data_ptr(), data.nbytes)])
    with pytest.raises(ValueError, match="update 3: the parameters before it are not those that the lost rank had"):
        make_again(job.log, other.state, 0, 0, 4)
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        with pytest.raises(ValueError, match=f"the lost rank had {threads} threads, and its replacement has {threads + 1}"):
            make_again(job.log, made().state, 0, 0, 1)
    finally:
        torch.set_num_threads(threads)
    with pytest.raises(holdfast.NotFoundError, match="no gradients of update 5 of rank 0"):
        make_again(job.log, other.state, 0, 4, 5)


class Ranks:
    """The transport of a job of two ranks; `other` changes what this rank tells into what the other one does."""

    rank, size = 0, 2

    def __init__(self):
        self.other = {}

    def all_gather(self, message, timeout=None):
        told = holdfast._native.decode_objects(message)
        return [message, holdfast._native.encode_objects({**told, **self.other})]


class Chosen:
    """A rank that keeps what it chooses together with another one, which has other parts of its parameters."""

    def __init__(self, job, **options):
        self.log = CallLog(os.memfd_create("log"))
        self.messages, self.ranks = Messages(self.log, holdfast.Recover(**options), job.state), Ranks()
        self.gate = Kept()
        self.gate.committed = 0
        self.ranks.other = {"boxes": [b"another box"]}
        self.messages.agree(self.ranks)
        self.ranks.other = {}

    def pass_gates(self, updates, sent=0):
        """Passes gates, with so many bytes of messages in each update."""
        for _ in range(updates):
            self.messages.begin(self.gate.committed + 1, "train")
            if sent and self.log.keeps_steps:
                self.log.keep((self.gate.committed + 1, "pp", "send", 0, 1, 0), [torch.zeros(sent, dtype=torch.uint8)])
            self.messages.prepare(self.gate.committed + 1, None, [])
            self.messages.updates.size = 1000
            self.messages.pass_on(self.gate, self.ranks)
            self.gate.committed += 1
            self.messages.commit()
            self.messages.end()

    def kinds(self):
        return [kind for kind, why in self.messages.told(0)["why not"].items() if not why]


@pytest.fixture
def chosen(made):
    return lambda **options: Chosen(made(), **options)


@pytest.mark.parametrize("sent, kind, why", [(500, "messages", "messages have fewer bytes"),
                                             (2000, "updates", "updates have fewer bytes")])
def test_at_the_second_update_ranks_choose_what_has_fewer_bytes(chosen, sent, kind, why):
    rank = chosen(log="auto")
    rank.pass_gates(1, sent)
    assert rank.kinds() == ["updates", "messages"] and rank.messages.is_on
    rank.pass_gates(1, sent)
    assert rank.kinds() == [kind] and why in rank.messages.told(0)["why not"].values()


def test_what_another_rank_cannot_keep_is_not_chosen(chosen):
    rank = chosen(log="auto")
    rank.ranks.other = {"why not": {"updates": "a gradient is sparse", "messages": ""}}
    rank.pass_gates(2, 2000)
    assert rank.kinds() == ["messages"]
    assert rank.messages.told(0)["why not"]["updates"] == "a gradient is sparse"


def test_updates_that_the_user_asked_for_are_kept_also_if_they_have_more_bytes(chosen):
    rank = chosen(log="updates")
    rank.pass_gates(2, 10)
    assert rank.kinds() == ["updates"]


def test_gradients_that_the_memory_has_no_room_for_are_not_kept(chosen, caplog):
    rank = chosen(log="updates", memory=3999)
    rank.log.on_unfit("reduce_scatter in group 0, whose result only one rank gets", [0, 1])
    rank.pass_gates(2)
    assert rank.kinds() == [] and not rank.messages.is_on
    assert ('Recover(log="updates"): the gradients of 4 updates have 4000 bytes, and memory= has room for 3999: all '
            "ranks start again if one is lost") in caplog.text


def test_without_a_wish_the_memory_must_have_room_for_more(chosen):
    rank = chosen(log="auto", memory=19999)
    rank.pass_gates(2, 2000)
    assert rank.kinds() == ["messages"]
    assert rank.messages.told(0)["why not"]["updates"].startswith("the gradients of 20 updates have 20000 bytes")


@pytest.mark.parametrize("log, kept", [("auto", []), ("updates", ["updates"])])
def test_updates_that_cost_too_much_are_not_kept_any_more_unless_the_user_asked_for_them(chosen, caplog, log, kept):
    rank = chosen(log=log)
    rank.pass_gates(21, 2000)
    assert rank.kinds() == ["updates"]
    rank.messages.updates.seconds = 20.0
    rank.pass_gates(1)
    assert rank.kinds() == kept
    assert ("to keep updates takes" in caplog.text) == (not kept)


def test_a_rank_whose_updates_cannot_be_kept_any_more_says_so_once(chosen, caplog):
    rank = chosen(log="auto")
    rank.pass_gates(2, 2000)
    rank.messages.updates.refuse("a gradient is sparse")
    rank.pass_gates(3)
    assert [one.getMessage() for one in caplog.records] == [
        "rank 0: a gradient is sparse: its updates are not kept any more, so that all ranks start again if it is lost"]
    assert rank.messages.told(0)["peer said"]["refused"] == "a gradient is sparse"  # by the buddy, which is itself here


def test_an_entry_without_room_leaves_a_hole_that_is_told(chosen):
    rank = chosen(log="updates", memory=4000)
    rank.pass_gates(2, 100)
    assert rank.messages.told(0)["whole after"] == 0
    rank.pass_gates(60)
    assert rank.messages.told(0)["whole after"] == 62
    rank.log.native.clear()
    rank.pass_gates(1)
    with pytest.raises(LookupError, match="rank 1 has not kept all updates of rank 0 since step 4"):
        plan_updates({1: {**rank.messages.told(0), "update of": [(4, 5)], "whole after": 62}}, 4, 63, 0)


@pytest.mark.parametrize("log, other, why", [
    ("auto", {"seconds": 5.0}, "to keep messages takes"), ("messages", {"seconds": 5.0}, ""),
    ("messages", {"why not": "a step calls reduce_scatter"}, "a step calls reduce_scatter"),
])
def test_if_one_rank_keeps_messages_no_more_none_does(chosen, log, other, why):
    rank = chosen(log=log)
    rank.pass_gates(21 if log == "auto" else 20, 500)
    assert rank.kinds()[-1:] == ["messages"] and rank.log.keeps_steps
    rank.ranks.other = other
    rank.pass_gates(2, 500)
    rank.ranks.other = {}
    assert rank.log.keeps_steps == (not why) and rank.messages.told(0)["why not"]["messages"].startswith(why)


def test_a_step_waits_once_for_room_while_a_save_is_under_way(chosen, monkeypatch):
    class Pending:
        has_pending, looks = True, 0

        def newest(self):
            self.looks += 1

    monkeypatch.setattr(messages, "_STALL", 0.1)
    rank = chosen(log="messages", memory=1000)
    rank.messages.durable = pending = Pending()
    rank.pass_gates(30, 500)
    assert 30 < pending.looks < 60  # one for each record without room, and some while the first of them waits
    assert rank.messages.told(0)["whole after"] == 30


def test_where_one_rank_waits_for_another_that_is_no_cost(chosen):
    rank = chosen(log="auto")
    rank.pass_gates(21, 2000)
    rank.messages.updates.seconds = 20.0
    rank.ranks.other = {"seconds": 0.0}  # it comes last, and finds all entries there
    rank.pass_gates(1)
    assert rank.kinds() == ["updates"]


def test_nothing_is_kept_if_another_rank_has_all_parameters(made):
    rank = Chosen.__new__(Chosen)
    rank.messages = Messages(CallLog(os.memfd_create("log")), holdfast.Recover(), made().state)
    rank.messages.agree(Ranks())
    assert not rank.messages.is_on
    assert set(rank.messages.told(0)["why not"].values()) == {"all parameters are on several ranks"}


def test_a_choice_counts_when_the_update_is_committed(chosen):
    rank = chosen(log="auto")
    rank.pass_gates(1, 500)
    rank.messages.prepare(2, None, [])
    rank.messages.pass_on(rank.gate, rank.ranks)
    rank.messages.end()  # a rank has died: the step is made again
    assert rank.kinds() == ["updates", "messages"]
    rank.pass_gates(1, 500)
    assert rank.kinds() == ["messages"]
