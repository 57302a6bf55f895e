"""Recovery under `holdfast launch`: ranks are killed, the others keep their processes, and every bit
is that of a run in which nobody died. test_recover_all.py has the long list of cases."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from long_tests import IS_LONG, LONG, first_of
from recovered_jobs import Ran, launch, program
from torch import nn

import holdfast
from holdfast.torch.recover.buddies import second_buddies

# Every place at which a rank is killed: in a step, around it, and in the recovery of another rank.
STEP_POINTS = ["before", "forward", "after forward", "backward", "after backward", "gate",
               "committed", "in update", "after update", "end", "after run", "step", "after step"]
PHASES = ["dropped", "met", "rejoined", "given"]  # of a survivor, while another rank is replaced
REPLACEMENT_PHASES = ["started", "filled"]
STEPS = 18


def test_a_rank_may_die_anywhere_in_a_step(tmp_path, whole):
    kills = [f"{k % 3}:{k + 2}:{point}" for k, point in enumerate(STEP_POINTS)]
    ran = Ran("ddp", tmp_path / "run", STEPS, kills)
    ran.check(whole("ddp", STEPS))
    assert len(re.findall(r"goes on after", ran.said)) == len(kills), ran.said
    assert all(f"rank {k % 3}" in ran.said for k in range(3))


def test_another_rank_may_die_while_one_is_replaced(tmp_path, whole):
    # Ranks that are no first buddies of each other.
    kills = [kill for k, point in enumerate(PHASES)
             for kill in (f"{k % 4}:{3 * k + 2}:after backward", f"{(k + 2) % 4}:{3 * k + 2}:{point}")
             if IS_LONG or k % 2]
    Ran("ddp", tmp_path / "run", STEPS, kills, ranks=4).check(whole("ddp", STEPS, ranks=4))


def test_a_replacement_may_die(tmp_path, whole):
    kills = ["1:3:forward", *(f"1:*:{point}" for point in REPLACEMENT_PHASES), "2:9:in update"]
    Ran("ddp", tmp_path / "run", STEPS, kills).check(whole("ddp", STEPS))


@pytest.mark.parametrize("again", ["*:joined", "3:gate"])
def test_a_replacement_may_die_in_its_first_step(tmp_path, whole, again):
    """Its record is the one that it was filled from, in which a step of the scheduler is missing."""
    Ran("ddp", tmp_path / "run", 11, ["1:2:after update", f"1:{again}"]).check(whole("ddp", 11))


def test_what_is_not_exact_in_a_replacement_is_not_exact_in_the_next_one(tmp_path):
    ran = Ran("ddp", tmp_path / "run", 6, ["1:3:after run", "1:*:joined"], ["draws"])
    assert ran.code == 0 and ran.killed == set(ran.kills), ran.said
    assert "not exact: generators: changes between the update and the end of its step" in ran.said, ran.said


def test_a_rank_may_die_together_with_the_first_one_that_keeps_its_record(tmp_path, whole):
    # Pairs of neighbours die in the same step, or one of them while the other is replaced.
    pairs = [((0, "after backward"), (1, "after backward")), ((1, "forward"), (2, "dropped")),
             ((3, "after step"), (0, "after step")), ((2, "gate"), (3, "given")),
             ((1, "after backward"), (0, "met"))][: 5 if IS_LONG else 2]
    kills = [f"{rank}:{3 * k + 2}:{point}" for k, pair in enumerate(pairs) for rank, point in pair]
    ran = Ran("ddp", tmp_path / "run", STEPS, kills, ranks=4)
    ran.check(whole("ddp", STEPS, ranks=4))
    assert re.findall("goes on after .*?: (.*) [(]", ran.said) == len(pairs) * [
        "replica, exact, 0 steps lost"], ran.said


def test_all_ranks_restart_if_a_rank_dies_with_both_that_kept_its_record(tmp_path, whole):
    ran = Ran("ddp", tmp_path / "run", STEPS, [f"{rank}:8:after backward" for rank in range(3)], ranks=4)
    ran.check_restart(whole("ddp", STEPS, ranks=4), "the ranks that kept its record are lost, too")


@pytest.mark.parametrize("hosts, most", [
    ([0, 0, 0], 3), ([0] * 8, 8), ([0, 0, 1, 1], 2), ([0, 1, 2], 0), ([0, 0, 1, 1, 2, 2], 0),
    ([1, 0, 2, 1, 0, 2, 3, 3], 0), ([0, 0, 0, 1], 2), ([0] * 4 + [1] * 4, 2)])
def test_second_buddies_are_other_ranks_on_other_hosts(hosts, most):
    """`most` ranks have their second buddy on their own host."""
    world, circle = range(len(hosts)), sorted(range(len(hosts)), key=lambda one: hosts[one])
    largest = max(map(hosts.count, hosts))
    far = 1 if largest == len(hosts) else largest
    first = [circle[(circle.index(one) + far) % len(hosts)] for one in world]  # as buddies.cpp has them
    made = second_buddies(hosts, 0, first[0])
    assert sorted(made) == list(world)
    assert all(second_buddies(hosts, one, first[one]) == made for one in world)
    assert all(made[one] not in (one, first[one]) for one in world)
    assert sum(hosts[one] == hosts[made[one]] for one in world) == most


@pytest.mark.parametrize("kind, how, why", [
    ("pipeline", ["keeps nothing"], "model.blocks.2.0.weight: no other rank has it"),
    pytest.param("ddp", ["averages by rank at once"], "own_average.small", marks=LONG)])
def test_what_no_other_rank_has_is_said_at_once(tmp_path, kind, how, why):
    ran = Ran(kind, tmp_path / "run", 9, ["1:7:after backward"], how, ranks=2)
    assert ran.code == 0 and ran.killed == set(ran.kills), ran.said
    assert "start again from the newest checkpoint" in ran.said and why in ran.said, ran.said
    (seen,) = re.findall("goes on after .*: checkpoint, .*[(]seen ([0-9.]+)", ran.said)
    assert float(seen) < 9, ran.said  # no wait of 10 s for the death of another rank


def test_a_job_that_is_to_stop_and_loses_what_only_one_rank_had_ends_with_1(tmp_path):
    ran = Ran("pipeline", tmp_path / "run", 40, ["1:7:after backward"],
              ["stops first", "keeps nothing"], ranks=2)
    assert ran.code == 1 and ran.killed == set(ran.kills), ran.said
    assert "keeps no messages: log=None: the job ends, as it was asked to, and continues from its newest " \
           "checkpoint when it is started again" in ran.said, ran.said


@pytest.mark.parametrize("kind", ["hsdp", "pipeline"])
def test_replicas_of_shards_and_of_stages_fill_a_rank(tmp_path, whole, kind):
    kills = ["2:2:forward", "1:4:after backward", "3:6:in update", "0:9:after step"][: 4 if IS_LONG else 2]
    ran = Ran(kind, tmp_path / "run", 12, kills)
    ran.check(whole(kind, 12))
    assert " writes to " not in ran.said, ran.said


def test_without_what_a_step_restores_bits_differ(tmp_path, whole):
    ran = Ran("ddp", tmp_path / "run", STEPS, ["2:6:after backward"], ["restores only gradients"])
    assert ran.code == 0 and ran.killed
    assert "goes on after" in ran.said and "checkpoint" not in ran.said, ran.said
    assert ran.end != whole("ddp", STEPS).end


@LONG
def test_a_rank_may_die_in_any_of_several_runs_of_a_step(tmp_path, whole):
    how = ["critic", "validates in run", "validates first", "validates before", "barrier"]
    kills = ["0:3:critic", "1:5:between", "2:7:forward", "0:8:validation", "1:10:after run",
             "2:14:after validation", "0:16:after step", "1:18:gate"]
    Ran("ddp", tmp_path / "run", 20, kills, how).check(whole("ddp", 20, how))


@LONG
def test_what_changes_behind_the_update_is_kept(tmp_path, whole):
    how = ["average", "draws", "tracks", "counts"]
    kills = ["0:3:step", "1:5:after step", "2:7:before", "1:9:forward"]
    Ran("ddp", tmp_path / "run", 12, kills, how).check(whole("ddp", 12, how))


@pytest.mark.parametrize("how", first_of([["schedules first", "counts in the step"],
                                          ["schedules at the top", "counts"]], 1), ids="-".join)
def test_what_a_step_changes_before_its_update_changes_once(tmp_path, whole, how):
    kills = ["0:3:after backward", "1:5:forward", "2:7:gate", "1:9:before"]
    Ran("ddp", tmp_path / "run", 12, kills, how).check(whole("ddp", 12, how))


@pytest.mark.parametrize("kind", ["ddp", "fsdp", pytest.param("hsdp", marks=LONG)])
def test_gradients_of_earlier_steps_are_kept(tmp_path, whole, kind):
    how = ["keeps gradients"]
    # After the update of step 7, the others drop their gradients.
    kills = ["0:4:after backward", "1:7:after update", "2:9:gate"]
    Ran(kind, tmp_path / "run", 10, kills, how).check(whole(kind, 10, how))


@LONG
def test_an_average_that_reads_statistics_at_the_top_of_the_loop_restarts_exactly(tmp_path, whole):
    how, kills = ["average first"], [f"{rank}:7:forward" for rank in range(3)]
    ran = Ran("ddp", tmp_path / "run", 9, kills, how)
    ran.check_restart(whole("ddp", 9, how), "")
    assert "checkpoint, exact" in ran.said, ran.said


@pytest.mark.parametrize("kind", ["ddp", pytest.param("fsdp", marks=LONG)])
def test_steps_that_begin_to_keep_gradients_are_noticed(tmp_path, whole, kind):
    how = ["keeps gradients late"]  # step 6 is the first that adds to some
    Ran(kind, tmp_path / "known", 10, ["1:8:after backward"], how).check(whole(kind, 10, how))
    ran = Ran(kind, tmp_path / "unknown", 10, ["1:6:after backward"], how)
    ran.check_restart(whole(kind, 10, how), "gradients of earlier steps")


@LONG
@pytest.mark.parametrize("first", ["drops first", "zeroes first"])
def test_steps_that_no_longer_drop_gradients_at_their_beginning_are_noticed(tmp_path, whole, first):
    how = [first, "keeps gradients late"]  # step 5 is the first that adds to some
    Ran("ddp", tmp_path / "known", 10, ["1:8:after backward"], how).check(whole("ddp", 10, how))
    for point in ("forward", "after backward"):
        ran = Ran("ddp", tmp_path / point.replace(" ", "-"), 10, [f"1:5:{point}"], how)
        ran.check_restart(whole("ddp", 10, how), "gradients of earlier steps")


def test_an_average_of_a_stage_is_compared_with_those_of_the_same_stage(tmp_path):
    ran = Ran("pipeline", tmp_path / "run", 10, ["0:5:forward", "3:7:after step"], ["average first"])
    assert ran.code == 0 and ran.killed == set(ran.kills), ran.said
    assert ran.said.count("starts again") == 2 and "Traceback" not in ran.said, ran.said


def test_a_restart_without_gradients_that_steps_keep_is_not_exact(tmp_path):
    kills = [f"{rank}:7:forward" for rank in range(3)]
    ran = Ran("ddp", tmp_path / "run", 9, kills, ["keeps gradients"])
    assert ran.code == 0, ran.said
    assert "checkpoint, not exact: gradients of earlier steps" in ran.said, ran.said


@LONG
def test_values_that_a_replacement_sets_itself_are_those_of_the_others(tmp_path, whole):
    how = ["sets a rate"]
    Ran("ddp", tmp_path / "run", 8, ["1:5:after backward"], how).check(whole("ddp", 8, how))


@pytest.mark.parametrize("how", first_of(["spoils a weight", "averages at the top"], 1))
def test_tensors_that_only_a_replacement_has_otherwise_are_those_of_the_others(tmp_path, whole, how):
    Ran("ddp", tmp_path / "run", 8, ["1:5:after backward"], [how]).check(whole("ddp", 8, [how]))


def test_replicas_that_differ_at_the_gate_restart_all_ranks(tmp_path, whole):
    how, why = ["spoils in the step"], "model.blocks.0.0.weight: not equal on all ranks after a recovery"
    ran = Ran("ddp", tmp_path / "run", 10, ["1:7:after backward"], how)
    ran.check_restart(whole("ddp", 10, how), why)
    assert ran.said.count("goes on after") == 1, ran.said  # nobody goes on from what was not equal
    ran = Ran("ddp", tmp_path / "first", 5, ["1:3:after backward"], how)  # there is no checkpoint yet
    assert ran.code == 0 and ran.killed == set(ran.kills), ran.said
    assert "step 3 goes on" in ran.said and f"replica, not exact: {why}" in ran.said, ran.said
    assert "holdfast: all ranks start again" not in ran.said, ran.said


@LONG
def test_slots_that_differ_at_the_gate_restart_all_ranks(tmp_path, whole):
    how = ["spoils a slot"]
    ran = Ran("ddp", tmp_path / "run", 10, ["1:7:after backward"], how)
    ran.check_restart(whole("ddp", 10, how), "exp_avg: not equal on all ranks after a recovery")


@LONG
def test_a_step_that_depends_on_what_no_rank_has_told_is_not_exact(tmp_path, whole):
    how = ["rate by calls"]
    ran = Ran("ddp", tmp_path / "run", 10, ["1:7:after backward"], how)
    assert ran.code == 0 and ran.killed == set(ran.kills), ran.said
    assert "start again from the newest checkpoint" in ran.said, ran.said
    assert re.search("checkpoint, not exact: .*lr: a step depends on something that no checkpoint has", ran.said), \
        ran.said
    assert ran.end != whole("ddp", 10, how).end  # no rank has what a run without a death has


@pytest.mark.parametrize("how, words", [
    ("counts calls", "counter.total: other values on a replacement than on other ranks"),
    pytest.param("averages by rank", "own_average.small: differs between ranks, so that a replacement has that of",
                 marks=LONG)])
def test_what_a_replacement_has_otherwise_in_an_object_is_not_exact(tmp_path, how, words):
    ran = Ran("ddp", tmp_path / "run", 6, ["1:3:after backward"], [how])
    assert ran.code == 0 and ran.killed == set(ran.kills), ran.said
    assert f"not exact: {words}" in ran.said, ran.said


@pytest.mark.parametrize("how, named", first_of([
    ("by hand", "model.blocks.0.0.weight"), ("encoder", "model.encoder.weight, model.encoder.bias")], 1))
def test_a_step_that_writes_to_parameters_itself_is_made_again(tmp_path, whole, how, named):
    kills = ["0:3:after backward", "1:5:gate", "2:7:in update"]
    ran = Ran("ddp", tmp_path / "run", 10, kills, [how])
    ran.check(whole("ddp", 10, [how]))
    assert ran.said.count("before an update of an optimizer") == 1, ran.said
    assert f"ck.run(Training.step) writes to {named}" in ran.said


@LONG
def test_a_write_by_data_that_begins_late_is_seen_and_made_once(tmp_path, whole):
    how = ["late encoder"]
    expected = whole("ddp", 10, how)
    ran = Ran("ddp", tmp_path / "run", 10, ["1:7:after backward"], how)
    ran.check(expected)
    assert "writes to model.encoder.weight, model.encoder.bias before an update" in ran.said, ran.said
    ran = Ran("ddp", tmp_path / "first", 10, ["1:6:after backward"], how)  # there is no copy yet
    ran.check_restart(expected, "the step had written to model.encoder.weight, model.encoder.bias, of "
                      "which there was no copy")


@LONG
def test_tensors_of_objects_that_a_step_writes_to_by_data_are_written_to_once(tmp_path, whole):
    how = ["own average"]
    Ran("ddp", tmp_path / "run", 9, ["1:5:after backward", "2:7:gate"], how).check(whole("ddp", 9, how))


@pytest.mark.parametrize("how, point, words", [
    (["draws"], "after run", "generators: changes between the update and the end of its step"),
    pytest.param(["draws behind"], "after step", "generators: random numbers are drawn behind ck.step()", marks=LONG),
    (["tracks"], "end", "tracker: differs between ranks, and changes between the update"),
    pytest.param(["average", "keeps gradients"], "end", "ema.module.blocks.0.1.running_mean, ", marks=LONG),
    (["critic"], "after critic", "ck.run(Training.critic_step): returned in the replacement what"),
])
def test_what_a_rank_did_not_live_to_tell_is_not_exact(tmp_path, how, point, words):
    ran = Ran("ddp", tmp_path / "run", 6, [f"1:3:{point}"], how)
    assert ran.code == 0, ran.said
    assert f"not exact: {words}" in ran.said, ran.said


@pytest.mark.parametrize("how, first", first_of([("draws behind", "before"), ("draws first", "after step")], 1))
def test_random_numbers_that_the_loop_draws_outside_of_its_steps_are_drawn_once(
        tmp_path, whole, how, first):
    kills = [f"0:3:{first}", "1:5:forward", "2:7:gate"]
    Ran("ddp", tmp_path / "run", 9, kills, [how]).check(whole("ddp", 9, [how]))


def test_a_loader_that_was_not_given_is_named_before_a_rank_dies(tmp_path):
    ran = Ran("ddp", tmp_path / "run", 7, ["1:5:forward"], ["other loader"])
    assert ran.code == 0, ran.said
    assert ran.said.count("expected data=more_samples") == 1, ran.said
    assert ran.said.index("expected data=more_samples") < ran.said.index("died in step 5")
    assert "not exact: more_samples: was not given as data=" in ran.said, ran.said


@pytest.mark.parametrize("how, kill, name", [
    ("other anew", "1:4:forward", "shuffled"), pytest.param("other loader", "1:1:forward", "more_samples", marks=LONG),
    pytest.param("other once", "1:4:gate", "more_samples", marks=LONG),
    pytest.param("other in the step", "1:1:after backward", "more_samples", marks=LONG),
])
def test_a_loader_that_was_not_given_is_not_exact_whenever_it_was_read(tmp_path, how, kill, name):
    ran = Ran("ddp", tmp_path / "run", 6, [kill], [how])
    assert ran.code == 0 and ran.killed == {kill}, ran.said
    assert f"not exact: {name}: was not given as data=" in ran.said, ran.said


def test_a_loader_that_is_read_to_its_end_or_always_from_its_beginning_need_not_be_given(tmp_path, whole):
    how = ["looks at data"]
    ran = Ran("ddp", tmp_path / "run", 6, ["1:1:forward", "2:4:gate"], how)
    ran.check(whole("ddp", 6, how))
    assert "was not given" not in ran.said, ran.said


@LONG
def test_a_buffer_that_a_step_assigns_is_the_one_before_it_again(tmp_path, whole):
    how = ["assigns a buffer"]
    Ran("ddp", tmp_path / "run", 8, ["0:3:after backward", "1:5:gate"], how).check(whole("ddp", 8, how))


@LONG
def test_a_step_gets_its_batch_again_as_it_was(tmp_path, whole):
    how = ["in place", "reads", "table"]
    kills = ["0:5:after backward", "1:8:after forward", "2:10:forward"]
    ran = Ran("ddp", tmp_path / "run", 12, kills, how)
    ran.check(whole("ddp", 12, how))
    assert "ck.run(Training.step) writes to its batch: a copy is kept from now on" in ran.said


def test_records_leave_out_large_buffers_that_nothing_changes(tmp_path, whole):
    kills = ["0:3:after backward", "1:5:gate", "1:6:after step"]
    ran = Ran("ddp", tmp_path / "run", 8, kills, ["masks"])
    ran.check(whole("ddp", 8, ["masks"]))
    sizes = [list(map(int, Path(f"{tmp_path}/run.records.{rank}").read_text().split())) for rank in range(3)]
    assert all(own[0] > 4 << 20 and max(own[1:]) < 1 << 20 for own in sizes), sizes


def test_all_ranks_restart_if_others_have_changed_a_large_buffer_since_it_was_told(tmp_path, whole):
    ran = Ran("ddp", tmp_path / "run", 10, ["1:8:after backward"], ["masks", "spoils a mask"])
    ran.check_restart(whole("ddp", 10, ["masks"]), "model.unsaved_mask: no other rank has it")


def test_a_death_in_a_validation_outside_of_run_restarts_all_ranks(tmp_path, whole):
    ran = Ran("ddp", tmp_path / "run", STEPS, ["1:8:validation"], ["validates"])
    ran.check_restart(whole("ddp", STEPS), "a collective call outside of Checkpointer.run()")


@pytest.mark.parametrize("how, why", [
    ("reads a table", "a collective call at start-up has returned 1200000 bytes"),
    pytest.param("warms up", "have returned more than is kept for a replacement", marks=LONG),
])
def test_a_result_of_start_up_that_was_not_kept_restarts_all_ranks(tmp_path, whole, how, why):
    ran = Ran("ddp", tmp_path / "run", 10, ["1:8:after backward"], [how])
    ran.check_restart(whole("ddp", 10, [how]), why)


@LONG
def test_a_replacement_needs_no_state_from_start_up(tmp_path, whole):
    how = ["sends the model", "table"]
    Ran("ddp", tmp_path / "run", 10, ["1:8:after backward"], how).check(whole("ddp", 10, how))


@LONG
def test_a_process_group_made_after_start_up_restarts_all_ranks(tmp_path, whole):
    ran = Ran("ddp", tmp_path / "run", STEPS, ["1:8:after backward"], ["late group"])
    ran.check_restart(whole("ddp", STEPS), "made after start-up")


def test_a_run_whose_result_cannot_be_told_restarts_all_ranks(tmp_path):
    ran = Ran("ddp", tmp_path / "run", 10, ["1:8:forward"], ["critic", "returns a model"])
    assert ran.code == 0, ran.said
    assert ("ck.run(Training.critic_step) was made already, and returned a "
            "DistributedDataParallel") in ran.said


def test_an_update_in_several_runs_is_refused(tmp_path):
    ran = Ran("ddp", tmp_path / "run", 6, [], ["accumulates"])
    assert ran.code == 1
    assert "expected all micro-batches of an update in one ck.run()" in ran.said


@LONG
def test_another_model_in_the_replacement_is_refused(tmp_path):
    ran = Ran("ddp", tmp_path / "run", 6, ["1:3:forward"], ["other model"])
    assert ran.code != 0
    assert "DDP expects same model" in ran.said and "step 3 was lost" in ran.said


@pytest.mark.parametrize("line, code", [
    ("sys.exit(5)", 5), ("raise ValueError", 1), ("os.kill(os.getpid(), 9)", 137), ("", 0),
])
def test_the_exit_code_of_a_program_is_that_of_the_job(tmp_path, line, code):
    script = tmp_path / "script.py"
    script.write_text(f"import os, sys\n{line}\n")
    assert launch([script], ranks=1, said=tmp_path / "said")[0] == code


LATE = """
import sys, time, torch, holdfast
import torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.Linear(2, 2)
opt = torch.optim.SGD(model.parameters(), 0.1)
ck = holdfast.Checkpointer(sys.argv[1], model=model, optimizer=opt, every="never")

def step(rank, other):
    values = torch.full((2,), 7.0)
    if rank == 0:
        time.sleep(1)
        dist.send(values, other)
    else:
        values.zero_()
        dist.recv(values, other)
    model(values).sum().backward()
    opt.step()
    opt.zero_grad()
    return values

start = ck.resume()
assert ck.run(step, dist.get_rank(), 1 - dist.get_rank()).tolist() == [7.0, 7.0]
ck.step(start)
ck.close(save=False)
"""


def test_a_stage_may_wait_for_its_neighbour(tmp_path):
    script, said = tmp_path / "script.py", tmp_path / "said"
    script.write_text(LATE)
    assert launch([script, tmp_path / "run"], ranks=2, said=said)[0] == 0, said.read_text()


def test_the_program_becomes_the_launcher():
    def run(*arguments):
        return subprocess.run([program(), "launch", *arguments], capture_output=True, text=True,
                              env={**os.environ, "HOLDFAST_PYTHON": sys.executable}, timeout=60,
                              check=False)

    helped, wrong = run("--help"), run("-n", "0", "train.py")
    assert helped.returncode == 0 and "holdfast launch -n 4 train.py" in helped.stdout, helped.stderr
    assert (wrong.returncode, wrong.stderr) == (2, "holdfast: launch: -n 0; expected 1 to 1024\n")


def test_recover_is_refused_without_the_launcher(tmp_path):
    model = nn.Linear(2, 2)
    with pytest.raises(ValueError, match="not started by holdfast launch"):
        holdfast.Checkpointer(tmp_path / "run", model=model, recover=True,
                              optimizer=torch.optim.SGD(model.parameters()))


def test_run_is_a_plain_call_without_the_launcher(tmp_path):
    model = nn.Linear(2, 2)
    with holdfast.Checkpointer(tmp_path / "run", model=model, every="never",
                               optimizer=torch.optim.SGD(model.parameters())) as ck:
        assert ck.run(lambda a, b: a + b, 1, b=2) == 3
