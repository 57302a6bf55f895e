"""study/schedule.py measures what docs/schedule.md says. `make bench` checks the whole page."""

import importlib.util
from pathlib import Path

import pytest

import holdfast

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(holdfast._native.__file__).parents[2] / "bin" / "holdfast"
PAGE = (ROOT / "docs/schedule.md").read_text()


@pytest.fixture(scope="module")
def study():
    spec = importlib.util.spec_from_file_location("schedule_study", ROOT / "study/schedule.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def row(cells):
    return f"| {' | '.join(cells)} |\n"


def test_a_cell_has_the_figures_of_the_page(study):
    cell = study.measure_cell(study.Program(PROGRAM), 1.6, 0.00417, -0.2)
    assert row(study.progress_row(cell)) in PAGE
    assert row(study.seconds_row(cell)) in PAGE


def test_a_job_with_allocated_workers_has_the_figures_of_the_page(study):
    program = study.Program(PROGRAM)
    workers = study.allocated(program, 2 * study.HOUR)
    assert row(study.shrinking_row(program, workers, 24 * study.HOUR, 5)) in PAGE


def test_the_injected_failures_have_the_figures_of_the_page(study):
    phases = study.phase_changes(study.Program(PROGRAM))
    least, most = study.percent(phases[0]), study.percent(phases[-1])
    assert f"from {least} % to {most} %" in PAGE


def test_the_page_has_the_text_of_the_template(study):
    for line in study.TEMPLATE.read_text().splitlines():
        assert "{" in line or line in PAGE
