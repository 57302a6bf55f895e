"""study/schedule.py measures what docs/studies/schedule.md says. `make bench` checks the whole page."""

import importlib
import math
import sys
from pathlib import Path

import pytest

import holdfast

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(holdfast._native.__file__).parents[2] / "bin" / "holdfast"
PAGE = (ROOT / "docs/studies/schedule.md").read_text()


@pytest.fixture(scope="module")
def study():
    """The study's main script. It imports the scripts beside it, as it does when it is run."""
    sys.path.insert(0, str(ROOT / "study"))
    yield importlib.import_module("schedule")
    sys.path.remove(str(ROOT / "study"))


def row(cells):
    return f"| {' | '.join(cells)} |\n"


def test_a_cell_has_the_figures_of_the_files_beside_the_page(study):
    cell = study.measure_cell(study.Program(PROGRAM), 1.6, 0.00417, -0.2)
    progress, seconds = study.progress_row(cell), study.seconds_row(cell)
    for file, line in ((study.PROGRESS, progress), (study.SECONDS, seconds)):
        assert ",".join(line) in file.read_text().splitlines()


def test_the_files_of_all_cells_have_a_value_for_each_name(study):
    for file, make in ((study.PROGRESS, study.progress_data), (study.SECONDS, study.seconds_data)):
        head, *rows = file.read_text().splitlines()
        assert make([]) == head + "\n"
        assert len(rows) == 100
        assert {line.count(",") for line in rows} == {head.count(",")}


def test_a_job_with_allocated_workers_has_the_figures_of_the_page(study):
    program = study.Program(PROGRAM)
    workers = study.allocated(program, 2 * study.HOUR)
    assert row(study.shrinking_row(program, workers, 24 * study.HOUR, 5)) in PAGE


def test_the_printed_objective_is_that_of_the_notes(study):
    """Its integral over the progress, by sums over small steps of the progress."""
    stall, rate, theta1, first, times = 0.6, 0.00417, -0.05, 2.3, [300.0, 900.0, 2000.0]
    edges = [0.0, *times, study.HOUR]
    progress = [first * -math.expm1(theta1 * t / study.MINUTE) for t in edges]
    expected = sum((first - p) * -math.expm1(theta1 * stall / study.MINUTE)
                   for p in progress[1:-1])  # fmt: skip
    for begin, end in zip(progress, progress[1:]):
        step = (end - begin) / 4000
        for i in range(4000):
            p = begin + (i + 0.5) * step
            minutes = math.log1p(-p / first) / theta1
            expected += (p - begin) * rate * math.exp(-rate * minutes) * step
    seen = study.printed_objective(times, stall, rate, theta1, first)
    assert seen == pytest.approx(expected, rel=1e-6)


def test_coci_beats_young_where_the_page_says(study):
    program = study.Program(PROGRAM)
    assert f"\n{study.best_cell_text(program)} in 1,000,000 simulated runs" in PAGE
    changes = study.objective_changes(program, 4.6, 1.6, 0.00024, -0.01)
    assert changes["expected value"] < -0.07


def test_a_data_parallel_job_has_the_figures_of_the_page(study):
    parallel = importlib.import_module("schedule_parallel")
    job = parallel.ParallelJob(study.halving(8, 4, 2 * study.HOUR), 0.13, 0.00104, 4.6)
    assert row(parallel.parallel_row(study.Program(PROGRAM), job)) in PAGE


def test_the_injected_failures_have_the_figures_of_the_page(study):
    phases = study.phase_changes(study.Program(PROGRAM))
    least, most = study.percent(phases[0]), study.percent(phases[-1])
    assert f"from {least} % to {most} %" in PAGE


def test_the_page_has_the_text_of_the_template(study):
    for line in study.TEMPLATE.read_text().splitlines():
        assert "{" in line or line in PAGE
