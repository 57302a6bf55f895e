"""Ways in which people write trainings: each is exact after kills, or says that it is not.

The scripts are in the folder `idioms`; idiom.py says what they look like.
"""

import os

import idiom
import pytest
from idioms_page import PAGE, row, rows_of, verdict_of

# Each takes a second. Those that are least unlike the others are not in `make test`.
LONG = {
    "accumulated_gradients", "accumulation_per_micro_batch", "accumulation_per_update",
    "adafactor_tied_weights", "averages_at_the_end", "batch_sampler_and_collate",
    "break_by_position", "break_by_step", "break_in_first_epoch", "channels_last_convnet",
    "counter_of_optimizer", "curriculum_values", "distillation", "draws_behind_step",
    "endless_loader_while", "epoch_by_step_calls", "epoch_number_as_step", "folds",
    "foreach_clip_warm_restarts", "forgotten_average", "forgotten_scaler", "forgotten_teacher",
    "functional_training", "fused_adamw_one_cycle", "generator_of_script",
    "generators_in_functions", "kept_gradients", "lazy_buffer", "lazy_modules", "lbfgs_closure",
    "loader_generator", "loader_number_of_epochs", "maml_inner_loop",
    "micro_batches_with_one_number", "mixup_on_the_fly", "momentum_contrast",
    "nadam_sequential_lr", "normalized_weights", "number_of_module", "optimizers_by_name",
    "own_generators", "persistent_workers", "plateau_on_validation", "random_augmentation",
    "random_batch_ahead", "read_ahead", "recomputed_activations", "rnn_hidden_state",
    "rprop_full_batch", "sampler_generator", "save_only", "several_loaders_longer_first",
    "sgd_nesterov_steps", "shared_generator", "sparse_embeddings", "step_before_scheduler",
    "step_lr_per_epoch", "subset_samplers", "swa_second_half", "too_many_epochs_untold",
    "trackers_as_objects", "trainer_class", "two_backward_passes", "unfreeze_backbone",
    "vae_annealing", "validation_before_training", "validation_on_training_loader",
    "warmup_lambda_groups", "weighted_sampler", "wgan_gradient_penalty", "zip_with_cycle",
}  # fmt: skip
NAMES = sorted(path.stem for path in idiom.FOLDER.glob("*.py"))


def test_at_least_40_ways_to_write_a_training_are_exact_without_a_word():
    assert sum(idiom.expectation(name)[1] == "exact" for name in NAMES) >= 40


def _marked(name):
    skipped = name in LONG and not os.environ.get("HOLDFAST_LONG")
    return pytest.param(name, marks=pytest.mark.skipif(skipped, reason="needs HOLDFAST_LONG=1"))


def test_the_long_idioms_exist():
    assert set(NAMES) >= LONG


@pytest.mark.parametrize("name", [_marked(name) for name in NAMES])
def test_an_idiom_does_what_its_script_says(tmp_path, name):
    _, expected = idiom.expectation(name)
    plain = idiom.train(name, tmp_path / "plain")
    killed = idiom.train(name, tmp_path / "killed", idiom.KILLS)
    print(plain.printed, killed.printed)  # shown if the test fails
    kind, _, text = expected.partition(": ")
    if kind == "refuses":
        assert killed.code == 1 and _is_refused(killed.printed, text)
        return
    assert (plain.code, killed.code) == (0, 0)
    if kind == "silent":
        assert killed.losses != plain.losses and not killed.printed
        return
    if kind.startswith("exact"):
        assert not killed.contradictions and killed.losses == plain.losses
        assert len(plain.losses) == idiom.STEPS
    if text:
        assert text in killed.printed
    else:
        assert not plain.printed and not killed.printed


def _is_refused(printed, text):
    """True if the process ended with an error of one sentence that has the text."""
    last = printed.strip().splitlines()[-1]
    return text in last and len(last) < 400


def test_the_page_of_idioms_has_a_row_for_each_script():
    rows = rows_of(PAGE.read_text())
    expected = {row(name, "").rpartition(" | ")[0] for name in NAMES}
    assert set(rows) == expected, f"{PAGE}: run python/tests/torch/idioms_page.py"


@pytest.mark.skipif(not os.environ.get("HOLDFAST_LONG"), reason="needs HOLDFAST_LONG=1")
@pytest.mark.parametrize("name", NAMES)
def test_a_rehearsal_says_of_an_idiom_what_the_page_says(name):
    assert rows_of(PAGE.read_text())[row(name, "").rpartition(" | ")[0]] == verdict_of(name)
