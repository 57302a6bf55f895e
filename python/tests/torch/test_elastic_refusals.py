"""What cannot be changed is refused with a sentence, and the job goes on as it was."""

import signal
import time

from recovered_jobs import begin_launch
from elastic_ran import SCRIPT, Left
from test_elastic import resize

from holdfast.resize.control import Control


def test_what_cannot_be_is_refused_with_a_sentence_and_no_step_is_lost(tmp_path):
    run, said = tmp_path / "run", tmp_path / "said"
    process = begin_launch(["-n", "2", "--most", "4", SCRIPT, run, "dp=2", "", "10000", ""], said)
    assert resize(run, until=process).returncode == 0, said.read_text()
    for to, why in [
        ("dp=25", "a batch of 24 for 25 ranks leaves some without a sample"),
        ("dp=5", "5 workers are wanted, and there are at most 4; expected a smaller configuration, or "
                 "holdfast launch --most 5"),
        ("tp=3", "ValueError: 4 heads, and tp=3; expected a divisor"),
    ]:
        ran = resize(run, "--to", to)
        assert ran.returncode == 1 and why in ran.stderr and ran.stderr.count("\n") == 1, ran
    for wanted, why in [
        ({"epoch": Control(run).epoch() - 1}, "the request is for a job that has ended"),
        ({"to": "xp=2"}, "configuration 'xp=2'; expected degrees"),
        ({"to": 7}, "configuration 7; expected degrees"),
        ({"avoid": ["x"]}, "avoid: ['x']; expected a list of numbers"),
    ]:
        assert why in ask(run, **wanted)["why"]
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 143, said.read_text()
    made = Left(run)
    assert set(made.configurations().values()) == {"tp=1,pp=1,dp=2"}
    assert sorted(made.losses()) == list(range(len(made.losses())))
    assert made.check_bits() == 1  # of the model with three parts, which build() has refused to make


def ask(run, **wanted):
    """The answer to a request that was written by hand."""
    control, id = Control(run), "by0hand"
    control._write(f"request-{id}.json", {"id": id, "epoch": control.epoch(), "to": "dp=1", **wanted})
    until = time.monotonic() + 20
    while (answer := control.read_answer(id)) is None or answer["state"] != "refused":
        assert time.monotonic() < until
        time.sleep(0.05)
    (run / "control" / f"answer-{id}.json").unlink()
    return answer
