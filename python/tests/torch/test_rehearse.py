"""`holdfast rehearse`: what it says of scripts that resume exactly, and of those that do not."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from rehearsed import rehearse

import holdfast
from holdfast.rehearse.plan import VARIABLE, places
from holdfast.torch.loop.rehearsal import _Seen

LONG = os.environ.get("HOLDFAST_LONG") == "1"

TRAINING = """
import sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import holdfast

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 1))
opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
x = torch.randn(48, 4)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8, shuffle=True)
ck = holdfast.Checkpointer(RUN, model=model, optimizer=opt, data=loader, every="1h")
step = ck.resume()
for epoch in range(loader.epoch, 4):
    for inputs, targets in loader:
        loss = (model(inputs) - targets).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        ck.step(step, loss=loss)
        step += 1
open(sys.argv[0] + ".end", "w")
ck.close()
"""


COUNTER = """
class Counter:
    def __init__(self):
        self.count = 1
    def state_dict(self):
        return {"count": self.count}
    def load_state_dict(self, state):
        self.count = state["count"] + 1
counter = Counter()
"""


def script(tmp_path, text=TRAINING):
    return text.replace("RUN", repr(str(tmp_path / "runs" / "gpt")))


def test_an_exact_script_is_exact_also_at_the_end_of_an_epoch(tmp_path):
    found = rehearse(script(tmp_path), tmp_path)
    assert found.code == 0, found.text
    assert "EXACT" in found.text and "again: equal" in found.text
    assert [(one["saved"], one["compared_to"]) for one in found.json["kills"]] == [(3, 6), (5, 7), (7, 9)]
    assert found.json["not_rehearsed"] == ["a validation", "workers of a loader"]
    assert not Path(tmp_path, "script.py.end").exists()  # the end of the script was not reached


def test_what_was_met_is_not_listed_and_what_was_not_has_the_steps_that_reach_it(tmp_path):
    text = script(tmp_path).replace("shuffle=True)", "shuffle=True, num_workers=1)").replace(
        "        step += 1\n", """        step += 1
        model.eval()
        with torch.no_grad():
            model(x)
        model.train()
""")
    met = rehearse(text, tmp_path)
    assert met.code == 0 and met.json["not_rehearsed"] == [] and "not rehearsed" not in met.text, met.text
    said = {}
    for steps in (5, 9):
        folder = tmp_path / f"of-{steps}"
        folder.mkdir()
        said[steps] = rehearse(script(folder), folder, steps=steps).text
    assert "not rehearsed: an epoch's end (--steps 9 reaches one), a validation" in said[5]
    assert "not rehearsed: a validation" in said[9]


def test_one_kill_lies_behind_an_epochs_end_where_a_loop_that_begins_again_shows(tmp_path):
    found = rehearse(script(tmp_path).replace("range(loader.epoch, 4)", "range(4)"), tmp_path)
    assert found.code == 1 and "the loop's epoch is 0 after a resume in epoch 1" in found.text, found.text


def test_the_help_says_that_other_files_are_written():
    shown = " ".join(holdfast_rehearse("--help").stdout.split())
    assert "their own runs and tiers are not touched. All other files that the command writes are written" in shown


def test_a_run_is_in_a_rehearsal_without_tiers_and_without_a_handover(monkeypatch, tmp_path):
    assert places("/runs/gpt", ["/tier"], True) == ("/runs/gpt", ["/tier"], True)
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    assert places("/runs/gpt", ["/tier"], True) == (str(tmp_path / "runs" / "runs_gpt"), (), False)


def test_the_run_of_the_script_and_its_tiers_stay_as_they_are(tmp_path):
    own = script(tmp_path).replace('every="1h"', f'every="1 steps", tiers=[{str(tmp_path / "tier")!r}]')
    trained = subprocess.run([sys.executable, "-c", own], capture_output=True, text=True, cwd=tmp_path)
    assert trained.returncode == 0, trained.stderr
    before = _bytes_of(tmp_path / "runs"), _bytes_of(tmp_path / "tier")
    assert before[0] and before[1]
    assert rehearse(own, tmp_path).code == 0
    assert (_bytes_of(tmp_path / "runs"), _bytes_of(tmp_path / "tier")) == before


def _bytes_of(folder):
    return {path: path.read_bytes() for path in sorted(Path(folder).rglob("*")) if path.is_file()}


def test_a_counter_that_nobody_saves_is_found_by_the_loss(tmp_path):
    text = script(tmp_path).replace("step = ck.resume()", "step = ck.resume()\ncount = 0").replace(
        ".mean()\n", ".mean() + count\n        count += 1\n")
    found = rehearse(text, tmp_path)
    assert found.code == 1
    assert found.json["first_difference"]["what"] == "loss"
    assert "NOT exact" in found.text and "objects=" in found.text


def test_a_loader_that_was_not_given_is_found_by_the_batch(tmp_path):
    found = rehearse(script(tmp_path).replace(", data=loader", "").replace("loader.epoch", "0"),
                     tmp_path)
    assert found.code == 1
    assert found.json["first_difference"]["what"] == "batch" and "data=" in found.text


def test_a_training_that_differs_by_itself_is_compared_with_the_killed_run(tmp_path):
    text = script(tmp_path).replace("x = torch", "torch.manual_seed(0)\nx = torch").replace(
        "loader = ", "torch.seed()\nloader = ").replace("torch.manual_seed(0)", "torch.seed()", 1)
    found = rehearse(text, tmp_path)
    assert found.code == 1
    assert found.json["deterministic"] is False
    assert "its state and its next batch are those of the killed run" in found.text


def test_a_state_that_comes_back_different_is_named_also_if_the_training_differs_by_itself(tmp_path):
    text = script(tmp_path).replace("ck = ", f"torch.seed()\n{COUNTER}ck = ").replace(
        "data=loader, ", 'data=loader, objects={"counter": counter}, ')
    found = rehearse(text, tmp_path)
    assert found.code == 1 and found.json["deterministic"] is False, found.text
    assert found.json["cause"]["what"] == "value" and "counter" in found.json["cause"]["name"]
    assert "counter.count came back with another value" in found.text
    assert "are those of the killed run" not in found.text


def test_a_script_that_only_saves_is_killed_after_its_saves(tmp_path):
    text = script(tmp_path).replace("ck.step(step, loss=loss)", "ck.save(step, loss=loss)")
    found = rehearse(text, tmp_path)
    assert found.code == 0, found.text
    assert found.json["kills"][0]["where"] == "behind save()"


def test_a_script_that_ends_early_is_rehearsed_up_to_its_end(tmp_path):
    found = rehearse(script(tmp_path).replace("epoch, 4)", "epoch, 1)"), tmp_path, steps=20)
    assert found.code == 0, found.text
    assert "6 steps, where it ended by itself" in found.text


@pytest.mark.parametrize(("change", "code", "says"), [
    ("print(1)\n#", 4, "made no holdfast.Checkpointer; expected"),
    ("1 / 0\n#", 1, "failed with exit code 1: ZeroDivisionError: division by zero"),
], ids=["no Checkpointer", "fails"])
def test_a_command_that_cannot_be_rehearsed_gets_one_sentence(tmp_path, change, code, says):
    found = rehearse(f"{change}\n", tmp_path)
    assert found.code == code and says in found.text and "\n" not in found.text


def test_a_script_without_resume_gets_one_sentence(tmp_path):
    found = rehearse(script(tmp_path).replace("step = ck.resume()", "step = 0"), tmp_path)
    assert found.code == 1
    assert "expected resume() before the first step" in found.text and "\n" not in found.text


def test_a_script_with_too_few_steps_gets_one_sentence(tmp_path):
    found = rehearse(script(tmp_path).replace("torch.randn(48", "torch.randn(12").replace(
        "epoch, 4)", "epoch, 1)"), tmp_path)
    assert found.code == 4
    assert found.text == "the command has made 2 steps by ck.step() or ck.save(); expected 3 or more"


def test_nothing_stays_running(tmp_path):
    detached = ('import subprocess\nsubprocess.Popen(["setsid", "--fork", "sleep", "4321.5"])\n')
    assert rehearse(detached + script(tmp_path), tmp_path).code == 0
    running = subprocess.run(["pgrep", "-f", "sleep 4321.5"], capture_output=True)
    assert running.returncode == 1


def holdfast_rehearse(*arguments):
    return subprocess.run([sys.executable, "-m", "holdfast.rehearse", *arguments],
                          capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize(("arguments", "says"), [
    ([], "no command; expected"),
    (["--", "no-such-program"], "no-such-program: no such program; expected"),
    (["--steps", "2", "--", "true"], "--steps 2; expected 3 or more"),
    (["--at", "x", "--", "true"], "x; expected steps such as 8,13"),
    (["--folder", "/", "--", "true"], "--folder /: is there already; expected a new folder"),
    (["--folder", 300 * "long", "--", "true"], "File name too long; expected a new folder"),
])
def test_wrong_calls_get_one_sentence(arguments, says):
    done = holdfast_rehearse(*arguments)
    assert done.returncode == 2
    assert done.stdout == "" and done.stderr.count("\n") == 1 and says in done.stderr


def test_a_step_that_is_not_made_cannot_be_killed_in(tmp_path):
    found = rehearse(script(tmp_path), tmp_path, at=[4, 99])
    assert found.code == 2 and "--at 99: not one of the steps 1 to 9; expected" in found.text


@pytest.mark.skipif(not LONG, reason="needs HOLDFAST_LONG=1")
def test_a_job_of_holdfast_launch_also_loses_one_rank_alone(tmp_path):
    done = holdfast_rehearse("--steps", "6", "--json", "--", sys.executable, "-m", "holdfast.launch",
                             "-n", "2", str(Path(__file__).with_name("launched.py")),
                             str(tmp_path / "run"), "50", "0")
    assert done.returncode == 0, done.stdout + done.stderr
    kills = json.loads(done.stdout)["kills"]
    assert [one["alone"] for one in kills] == [None, None, 1]
    assert not Path(tmp_path / "run").exists()


def test_a_model_that_never_changes_is_not_called_exact(tmp_path):
    text = script(tmp_path).replace("opt = ", "import copy\ntrained = copy.deepcopy(model)\nopt = ").replace(
        "model.parameters()", "trained.parameters()").replace("(model(inputs)", "(trained(inputs)").replace(
        " optimizer=opt,", "").replace(", loss=loss", "")
    found = rehearse(text, tmp_path)
    assert found.code == 1 and "No tensor that is saved has changed" in found.text


def test_micro_batches_that_share_a_number_are_one_step(tmp_path):
    text = script(tmp_path).replace("ck.step(step, loss=loss)", "ck.step(step // 2, loss=loss)").replace(
        "        opt.step()\n", "        if step % 2:\n            opt.step()\n").replace(
        "        opt.zero_grad()\n", "        if step % 2 == 0:\n            opt.zero_grad()\n").replace(
        "step = ck.resume()", "step = 2 * ck.resume()")
    found = rehearse(text, tmp_path, steps=8)
    assert found.code == 0, found.text


def test_losses_that_nobody_gives_are_named(tmp_path):
    found = rehearse(script(tmp_path).replace(", loss=loss", ""), tmp_path)
    assert found.code == 0 and "the losses (ck.step(step, loss=loss) tells them)" in found.text
def test_a_command_that_begins_anew_in_another_run_is_not_exact(tmp_path):
    text = script(tmp_path).replace("holdfast.Checkpointer(", "holdfast.Checkpointer(str(__import__('os')"
                                    ".getpid()) + ").replace("data=loader, ", "data=loader, keep=1, ")
    found = rehearse(text, tmp_path)
    assert found.code == 1, found.text  # although all its steps have the same bits
    assert "began anew, and step 3 was saved" in found.text
    assert found.json["first_difference"]["what"] == "resume" and "the same run" in found.text


LOOP = """
import torch
from torch import nn
import holdfast

def made(seed):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 4))
    return model, torch.optim.Adam(model.parameters(), lr=0.01)

def update(loss, opt):
    opt.zero_grad()
    loss.backward()
    opt.step()
"""

ADVERSARIES = LOOP + """
g, opt_g = made(0)
d, opt_d = made(1)
count = 0
OPEN
for step in range(start, 30):
    noise = torch.randn(3, 4)
    loss_d = FACTOR * d(g(noise).detach()).pow(2).mean()
    update(loss_d, opt_d)
    loss_g = -d(g(noise)).mean()
    update(loss_g, opt_g)
    count += 1
    STEP
"""
ONE = ('ck = holdfast.Checkpointer(RUN, model={"g": g, "d": d}, optimizer={"g": opt_g, "d": opt_d})\n'
       "start = ck.resume()", "ck.step(step, loss=loss_g)")
TWO = ('a = holdfast.Checkpointer(RUN + "/g", model=g, optimizer=opt_g)\n'
       'b = holdfast.Checkpointer(RUN + "/d", model=d, optimizer=opt_d)\n'
       "start = a.resume()\nassert start == b.resume()",
       "a.step(step, loss=loss_g)\n    b.step(step, loss=loss_d)")


@pytest.mark.parametrize("form", [ONE, TWO], ids=["one Checkpointer", "two Checkpointers"])
@pytest.mark.parametrize("factor", ["1", "count"])
def test_two_models_with_updates_of_their_own(tmp_path, form, factor):
    text = ADVERSARIES.replace("OPEN", form[0]).replace("STEP", form[1]).replace("FACTOR", factor)
    found = rehearse(script(tmp_path, text), tmp_path)
    assert found.json["exact"] is (factor == "1"), found.text
    assert ("2 Checkpointers that save after different steps" in found.text) is (form is TWO)


ONE_AFTER_ANOTHER = LOOP + """
for part in range(2):
    model, opt = made(part)
    with holdfast.Checkpointer(f"{RUN}/{part}", model=model, optimizer=opt) as ck:
        for step in range(ck.resume(INITIAL), 7 + part):
            loss = model(torch.randn(3, 4)).pow(2).mean()
            update(loss, opt)
            ck.step(step, loss=loss)
"""


@pytest.mark.parametrize("initial", ["", 'initial=f"{RUN}/0" if part else None'], ids=["", "initial"])
def test_trainings_one_after_another_in_one_process_are_exact(tmp_path, initial):
    found = rehearse(script(tmp_path, ONE_AFTER_ANOTHER.replace("INITIAL", initial)), tmp_path)
    assert found.code == 0, found.text
    assert found.json["steps"] == 8 and "again: equal" in found.text
    assert "kills in the steps of other Checkpointers" in found.text


def test_a_script_that_looks_into_its_run_sees_the_rehearsed_one(tmp_path):
    text = script(tmp_path)
    run = text[text.index("Checkpointer(") + 13:text.index(", model=")]
    found = rehearse(text.replace("step = ck.resume()", "step = ck.resume()\nif step:\n"
                                  f"    assert len(holdfast.open({run})) > 0"), tmp_path, steps=5)
    assert found.code == 0, found.text


SIDES = """
import torch.distributed.checkpoint as dcp
from holdfast.torch.dcp import Reader, SavePlanner, Writer
if step == 0:
    before = {"weight": torch.zeros(4)}
    assert holdfast.restore(RUN + "-own", {"weight": before["weight"].numpy()}).step == 7
    assert before["weight"].sum() == 4  # what the user has saved can be read
    with holdfast.Saver(RUN + "-own", tiers=[RUN + "-tier"]) as saver:
        saver.save(8, {"weight": torch.full((4,), 2.0).numpy()}).durable()
    assert holdfast.open(RUN + "-own").read("weight").sum() == 8
    holdfast.restore(RUN + "-own", {"weight": before["weight"].numpy()}, tiers=[RUN + "-tier"])
    assert before["weight"].sum() == 8
    with Writer(RUN + "-dcp") as writer:
        dcp.save({"weight": torch.ones(3)}, checkpoint_id=1, storage_writer=writer, planner=SavePlanner())
    dcp.load({"weight": torch.zeros(3)}, checkpoint_id=1, storage_reader=Reader(RUN + "-dcp"))
"""


def test_what_a_script_writes_without_a_checkpointer_is_redirected_too(tmp_path):
    own = tmp_path / "runs" / "gpt-own"
    with holdfast.Saver(own) as saver:
        saver.save(7, {"weight": torch.ones(4).numpy()})
    before = _bytes_of(own)
    text = TRAINING.replace("step = ck.resume()\n", "step = ck.resume()" + SIDES)
    found = rehearse(script(tmp_path, text), tmp_path, steps=5)
    assert found.code == 0, found.text
    assert _bytes_of(own) == before and [path.name for path in (tmp_path / "runs").iterdir()] == ["gpt-own"]


def accumulating(tmp_path, micro_batches, number):
    text = script(tmp_path).replace("        opt.zero_grad()\n", "").replace(
        "        opt.step()\n", f"        if micro % {micro_batches} == {micro_batches - 1}:\n"
        "            opt.step()\n            opt.zero_grad()\n")
    return text.replace("step = ck.resume()", f"step = ck.resume()\nmicro = step * {number}").replace(
        "step += 1", f"micro += 1\n        step = micro // {number}")


def test_micro_batches_that_share_a_number_are_exact(tmp_path):
    found = rehearse(accumulating(tmp_path, 3, 3), tmp_path)
    assert found.code == 0, found.text
    assert "8 steps, where it ended by itself" in found.text and len(found.json["kills"]) == 3


def test_an_update_that_comes_too_late_for_a_kill_is_no_kill(tmp_path):
    found = rehearse(accumulating(tmp_path, 12, 1), tmp_path)
    assert found.code == 4 and "expected more --steps" in found.text


def test_a_wrong_update_after_a_right_resume_is_not_blamed_on_the_resume(tmp_path):
    text = script(tmp_path).replace("        opt.zero_grad()\n", "").replace(
        "step += 1", "step += 1\n        [p.grad.mul_(0.5) for p in model.parameters()]")
    found = rehearse(text, tmp_path)
    assert found.code == 1 and "All that Holdfast saves came back" in found.text


@pytest.mark.parametrize(("old", "new"), [
    ("loss=loss)", "loss=torch.ones(3))"),
    ("ck.step(step, loss=loss)", "ck.save(__import__('numpy').int64(step))"),
], ids=["a loss of several numbers", "a number of NumPy"])
def test_records_do_not_disturb_a_training(tmp_path, old, new):
    found = rehearse(script(tmp_path).replace(old, new), tmp_path, steps=5)
    assert found.code == 0, found.text


def test_a_model_that_is_compiled_as_one_graph_is_not_recorded(monkeypatch):
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    seen = _Seen()
    seen.note_forward(None, torch.nn.Linear(1, 1), (torch.ones(1),), {})  # would break the graph
    assert seen.take()["inputs"] == []


def has_ended(pid):
    """True if the process runs no more, or not for long: what was killed ends a moment later."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return True
        if state == "Z":
            return True
        time.sleep(0.01)
    return False


def test_sigterm_ends_the_command_and_removes_the_folder(tmp_path):
    own = tmp_path / "temporary"
    own.mkdir()
    waits = f"import os, time; open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()) + ' ')\n"
    process = subprocess.Popen([sys.executable, "-m", "holdfast.rehearse", "--", sys.executable, "-c",
                                waits + "time.sleep(4321)"], env={**os.environ, "TMPDIR": str(own)})
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text().endswith(" "):
        assert process.poll() is None
    process.terminate()
    assert process.wait(60) == 128 + 15
    assert has_ended(int((tmp_path / "pid").read_text()))
    assert not list(own.iterdir())
