"""Replacing a folder by another: what a crash at any moment leaves."""

import os
from multiprocessing import get_context

import pytest

from holdfast.torch.files import replace_folder


def write(folder, text):
    folder.mkdir()
    (folder / "file").write_text(text)
    return folder


def read(target):
    return (replace_folder.find_folder(target) / "file").read_text()


def watch(monkeypatch, call):
    """Calls `call` before each step of the protocol, with the step's name and arguments."""
    for module, name in [(replace_folder, "_exchange"), (os, "rename"),
                         (replace_folder, "sync_folder"), (replace_folder, "remove_path")]:
        def wrapped(*args, name=name, original=getattr(module, name)):
            call(name, args)
            return original(*args)

        monkeypatch.setattr(module, name, wrapped)


def cannot_exchange(monkeypatch):
    monkeypatch.setattr(replace_folder, "_exchange", lambda one, two: False)


@pytest.fixture(params=["exchanged", "renamed"])
def way(request, monkeypatch):
    if request.param == "renamed":
        cannot_exchange(monkeypatch)
    return request.param


@pytest.mark.parametrize("old", ["none", "folder", "file", "link"])
def test_the_new_one_is_there_and_the_old_one_gone(way, old, tmp_path):
    target = tmp_path / "a"
    other = write(tmp_path / "other", "other")
    if old == "folder":
        write(target, "old")
    elif old == "file":
        target.write_text("old")
    elif old == "link":
        target.symlink_to(other)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    replace_folder.replace_folder(write(temporary / "made", "new"), target)
    assert read(target) == "new" and not target.is_symlink()
    assert {path.name for path in tmp_path.iterdir()} == {"a", "other", "temporary"}
    assert read(other) == "other"


def test_this_system_exchanges(tmp_path):
    one, two = write(tmp_path / "1", "1"), write(tmp_path / "2", "2")
    if not replace_folder._exchange(one, two):
        pytest.skip("not on this file system")
    assert read(one) == "2" and read(two) == "1"
    with pytest.raises(FileNotFoundError):
        replace_folder._exchange(one, tmp_path / "3")


def replace(target, made, end_before):
    """Ends the process before that step of the protocol.
    Its exit code is 7 if there are fewer steps."""
    count = 0

    def call(name, args):
        nonlocal count
        if count == end_before:
            os._exit(9)
        count += 1

    with pytest.MonkeyPatch.context() as patch:
        watch(patch, call)
        replace_folder.replace_folder(made, target)
    os._exit(7)


def test_a_crash_at_any_moment_leaves_a_whole_one_to_be_found(way, tmp_path):
    seen = []
    for end_before in range(20):
        folder = tmp_path / str(end_before)
        folder.mkdir()
        target, made = write(folder / "a", "old"), write(folder / "made", "new")
        child = get_context("fork").Process(target=replace, args=(target, made, end_before))
        child.start()
        child.join()
        seen.append(read(target))
        assert seen[-1] in ("old", "new")
        # Leftovers of the crash do not disturb a new replacement.
        again = write(folder / "again", "newer")
        replace_folder.replace_folder(again, target)
        assert read(target) == "newer" and not (folder / ".a.old").exists()
        if child.exitcode == 7:
            break
        assert child.exitcode == 9
    assert seen[0] == "old" and seen[-1] == "new" and len(seen) > 3


def test_the_name_is_durable_before_the_old_one_goes(way, tmp_path, monkeypatch):
    target, made = write(tmp_path / "a", "old"), write(tmp_path / "made", "new")
    calls = []
    watch(monkeypatch, lambda name, args: calls.append((name, args[0])))
    replace_folder.replace_folder(made, target)
    assert ("sync_folder", tmp_path) in calls
    after = calls[calls.index(("sync_folder", tmp_path)) + 1:]
    assert after == [("remove_path", tmp_path / ".a.old")]


def test_one_that_is_removed_is_not_found_aside(tmp_path):
    write(tmp_path / ".a.old", "old")
    assert read(tmp_path / "a") == "old"
    replace_folder.remove_folder(tmp_path / "a")
    assert list(tmp_path.iterdir()) == []
    assert replace_folder.find_folder(tmp_path / "a") == tmp_path / "a"


def test_names_of_new_folders_are_made_durable(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(replace_folder, "sync_folder", synced.append)
    with replace_folder.create_folder_durably(tmp_path / "b" / "c"):
        assert (tmp_path / "b" / "c").is_dir() and synced == []
    assert synced == [tmp_path / "b", tmp_path]
