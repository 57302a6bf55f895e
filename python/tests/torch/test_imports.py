"""The folders of the package: imports go in one direction, and no folder or file is too large."""

import ast
from pathlib import Path

import pytest

import holdfast

# Resolved, because a build folder has links to the sources.
PACKAGE = Path(holdfast.__file__).resolve().parent

# Folder of holdfast.torch -> the folders that it may import. "" is the top level, what users
# import: the Checkpointer and the adapters for other trainers.
ARROWS = {
    "values": set(),
    "files": {"values"},
    "data": {"values"},
    "state": {"values", "data"},
    "loop": {"values", "data", "state"},
    "dcp": {"values", "loop"},
    "recover": {"values", "data", "state", "loop"},
    "elastic": {"values", "data", "state", "loop", "recover"},
    "watch": {"values", "state", "loop"},
    "adapters": {"values", "data"},
    "": {"values", "files", "data", "state", "loop", "recover", "elastic", "watch", "adapters"},
}
MOST_FILES = 50
MOST_LINES = 450


def module_of(path):
    parts = ("holdfast", *path.relative_to(PACKAGE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


SOURCES = {module_of(path): path for path in PACKAGE.rglob("*.py")}


def imports_of(module):
    """The modules of the package that a module imports when it is imported."""
    found = set()
    for node in _run_on_import(ast.parse(SOURCES[module].read_text())):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            for name in node.names:
                inside = f"{node.module}.{name.name}"
                found.add(inside if inside in SOURCES else node.module)
    return {name for name in found if name in SOURCES and name != module}


def _run_on_import(tree):
    for node in tree.body:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        yield from ast.walk(node) if isinstance(node, ast.If | ast.Try) else [node]


def folder_of(module):
    """The folder of holdfast.torch that a module is in, or None for other modules."""
    parts = SOURCES[module].relative_to(PACKAGE).parts
    if parts[0] != "torch":
        return None
    return parts[1] if len(parts) > 2 else ""


def test_no_module_imports_itself_by_way_of_others():
    below = {module: imports_of(module) for module in SOURCES}
    # holdfast/__init__.py imports nearly all modules, and some import names from it that it has
    # defined before. So it counts as the lowest module here.
    below["holdfast"] = set()
    while leaves := {module for module, found in below.items() if not found & below.keys()}:
        for module in leaves:
            del below[module]
    assert not below, f"in a cycle, or above one: {sorted(below)}"


def test_imports_between_folders_go_one_way():
    wrong = [f"{module} imports {other}" for module in SOURCES if folder_of(module) is not None
             for other in imports_of(module)
             if folder_of(other) not in {None, folder_of(module), *ARROWS[folder_of(module)]}]
    assert not wrong


def test_the_rest_of_the_package_imports_torch_only_when_asked():
    wrong = [f"{module} imports {other}" for module in SOURCES if folder_of(module) is None
             for other in imports_of(module) if folder_of(other) is not None]
    assert not wrong


@pytest.mark.parametrize("folder", sorted({path.parent for path in SOURCES.values()}), ids=str)
def test_no_folder_has_too_many_files(folder):
    assert len(list(folder.glob("*.py"))) <= MOST_FILES


def test_no_file_is_too_long():
    lengths = {module: len(path.read_text().splitlines()) for module, path in SOURCES.items()}
    assert {module: n for module, n in lengths.items() if n > MOST_LINES} == {}
