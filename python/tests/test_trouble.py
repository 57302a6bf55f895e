"""Disks that are full, read-only, missing, or not a folder at all. The error is one clear sentence,
older checkpoints stay undamaged, and the next save works once the cause is gone."""

import errno
import os
import shutil

import numpy as np
import pytest
from small_disks import fill, remount

import holdfast

MIB = 1 << 20


def state(step):
    return {"w": np.full(MIB // 8, step, "f8"), "b": np.full(3, step, "i4")}


def restored_step(path):
    """Restores the newest step and checks its state. Returns the number of the step."""
    into = {name: np.zeros_like(array) for name, array in state(0).items()}
    restored = holdfast.restore(path, into)
    for name, array in state(restored.step).items():
        assert np.array_equal(into[name], array), name
    assert restored.skipped == []
    return restored.step


def assert_clear(error, *words):
    text = str(error.value)
    assert "\n" not in text and len(text) < 300, text
    assert all(word in text for word in words), text


def no_space(handle):
    with pytest.raises(OSError) as error:
        handle.durable()
    assert error.value.errno == errno.ENOSPC
    assert_clear(error, "step-" if "step-" in str(error.value) else "run")


def test_a_full_disk_keeps_the_older_step_and_the_next_save_works(small_disk):
    folder = small_disk
    run = folder / "run"
    with holdfast.Saver(run, writing=holdfast.Writing(space_reserve=0)) as saver:
        saver.save(1, state(1)).durable()
        fill(folder, MIB // 2)
        no_space(saver.save(2, state(2)))
        assert restored_step(run) == 1
        (folder / "filler").unlink()
        saver.save(3, state(3)).durable()
        assert restored_step(run) == 3
        assert not list(run.glob("*.tmp"))


def test_a_disk_that_fills_up_in_the_middle_of_a_save_is_the_same(small_disk):
    folder = small_disk
    run = folder / "run"
    with holdfast.Saver(run, writing=holdfast.Writing(space_reserve=0)) as saver:
        saver.save(1, state(1)).durable()
        fill(folder, MIB + MIB // 2)
        no_space(saver.save(2, state(2), "x" * MIB))  # objects are written after the tensors
        assert restored_step(run) == 1
        (folder / "filler").unlink()
        saver.save(3, state(3)).durable()
        assert restored_step(run) == 3
        assert not list(run.glob("*.tmp"))


def test_the_reserve_is_left_free(small_disk):
    folder = small_disk
    with pytest.raises(OSError):
        with holdfast.Saver(folder / "run",
                            writing=holdfast.Writing(space_reserve=100 * MIB)) as saver:
            no_space(saver.save(1, state(1)))


def test_failures_are_raised_by_a_save_only_where_fail_after_says_so(small_disk):
    folder = small_disk
    for fail_after in (None, 0):
        with holdfast.Saver(folder / "run", fail_after=fail_after,
                            writing=holdfast.Writing(space_reserve=0)) as saver:
            saver.save(1, state(1)).durable()
            fill(folder, MIB // 2)
            for step in (2, 3, 4, 5) if fail_after is None else (2,):
                no_space(saver.save(step, state(step)))
            if fail_after == 0:
                with pytest.raises(OSError) as error:
                    saver.save(5, state(5))
                assert error.value.errno == errno.ENOSPC
                assert_clear(error, "before step 5")
            (folder / "filler").unlink()
            saver.save(6, state(6)).durable()
        assert restored_step(folder / "run") == 6


def test_close_raises_what_the_last_save_did(small_disk):
    folder = small_disk
    saver = holdfast.Saver(folder / "run", writing=holdfast.Writing(space_reserve=0))
    saver.save(1, state(1)).durable()
    fill(folder, MIB // 2)
    saver.save(2, state(2))
    with pytest.raises(OSError, match="close"):
        saver.close()
    assert restored_step(folder / "run") == 1


def test_a_disk_that_becomes_read_only_is_read_from_all_the_same(small_disk):
    folder = small_disk
    run = folder / "run"
    saver = holdfast.Saver(run, writing=holdfast.Writing(space_reserve=0))
    saver.save(1, state(1)).durable()
    remount(folder, "ro")
    with pytest.raises(OSError) as error:
        saver.save(2, state(2)).durable()
    assert_clear(error, str(run), "Read-only")
    assert restored_step(run) == 1
    remount(folder, "rw")
    saver.save(3, state(3)).durable()
    saver.close()
    assert restored_step(run) == 3


def test_a_read_only_disk_is_refused_at_the_start(small_disk):
    folder = small_disk
    remount(folder, "ro")
    with pytest.raises(OSError) as error:
        holdfast.Saver(folder / "run")
    assert_clear(error, str(folder / "run"), "Read-only")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission_is_refused(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(OSError) as error:
        holdfast.Saver(tmp_path / "run")
    assert_clear(error, str(tmp_path))


def test_missing_folders_are_made(tmp_path):
    run = tmp_path / "a" / "b" / "run"
    with holdfast.Saver(run, writing=holdfast.Writing(space_reserve=0)) as saver:
        saver.save(1, state(1)).durable()
    assert restored_step(run) == 1


def test_a_run_that_vanishes_under_the_job_is_made_anew(tmp_path, caplog):
    run = tmp_path / "run"
    saver = holdfast.Saver(run, writing=holdfast.Writing(space_reserve=0))
    saver.save(1, state(1)).durable()
    shutil.rmtree(run)
    saver.save(2, state(2)).durable()
    saver.close()
    assert str(run) in caplog.text and "was removed or moved away" in caplog.text
    assert [path.name for path in run.glob("step-*")] == ["step-00000002"]


@pytest.mark.parametrize("use", [
    lambda path: holdfast.Saver(path), lambda path: holdfast.restore(path, {}),
])
def test_a_file_is_no_run(tmp_path, use):
    path = tmp_path / "file"
    path.write_text("not a folder")
    with pytest.raises((ValueError, holdfast.Error)) as error:
        use(path)
    assert_clear(error, str(path))
    assert path.read_text() == "not a folder"


def test_a_folder_of_other_things_is_no_run(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(holdfast.NotFoundError) as error:
        holdfast.restore(tmp_path, {})
    assert_clear(error, str(tmp_path))
