"""The package as a whole: what it imports, which names it has, what its typed stubs say."""

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import holdfast
from holdfast import _native


def fresh_python(code: str) -> subprocess.CompletedProcess[str]:
    """Runs code in a new interpreter that imports the same package."""
    folder = str(Path(holdfast.__file__).parent.parent)
    return subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {folder!r})\n{code}"],
        capture_output=True, text=True, check=True,
    )


def run_python(code: str) -> str:
    return fresh_python(code).stdout.strip()


def stub() -> ast.Module:
    return ast.parse((Path(holdfast.__file__).parent / "_native.pyi").read_text())


def names_of(body: list[ast.stmt]) -> set[str]:
    names = {node.name for node in body if isinstance(node, (ast.ClassDef, ast.FunctionDef))}
    for node in body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
        if isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return names


def test_dir_shows_all_that_is_public_before_torch_is_imported():
    code = (
        "import holdfast; print(set(holdfast.__all__) - set(dir(holdfast)))\n"
        "print('torch' in sys.modules)"
    )
    assert run_python(code).split() == ["set()", "False"]


def test_it_imports_where_torch_and_numpy_are_not():
    code = (
        "sys.modules['torch'] = sys.modules['numpy'] = None  # importing them now fails\n"
        "import holdfast; print(holdfast.__version__)"
    )
    assert run_python(code) == holdfast.__version__


def test_importing_it_does_not_import_torch():
    assert run_python("import holdfast; print('torch' in sys.modules)") == "False"


def test_what_a_daemon_thread_holds_at_exit_is_reported_by_checked_builds_only():
    code = (
        "import threading, holdfast\n"
        "held = threading.Event()\n"
        "def hold():\n"
        "    box = holdfast.Box([(0, 4)])\n"
        "    held.set()\n"
        "    threading.Event().wait()\n"
        "    print(box)\n"
        "threading.Thread(target=hold, daemon=True).start()\n"
        "held.wait()"
    )
    said = fresh_python(code).stderr
    assert ("leaked" in said) if _native._checked else said == ""


def test_it_is_marked_as_typed():
    assert (Path(holdfast.__file__).parent / "py.typed").exists()


def test_everything_public_is_there():
    assert all(hasattr(holdfast, name) for name in holdfast.__all__)
    assert holdfast.__all__ == sorted(holdfast.__all__)


def test_stub_and_module_have_the_same_public_names():
    public = {name for name in dir(_native) if not name.startswith("_")}
    assert names_of(stub().body) == public


def test_stub_and_classes_have_the_same_public_members():
    classes = [node for node in stub().body if isinstance(node, ast.ClassDef)]
    assert classes
    for node in classes:
        members = {name for name in vars(getattr(_native, node.name))
                   if not name.startswith(("_", "@"))}
        stubbed = {name for name in names_of(node.body) if not name.startswith("_")}
        assert stubbed == members, node.name


def test_every_stubbed_function_is_fully_typed():
    for node in ast.walk(stub()):
        if isinstance(node, ast.FunctionDef):
            assert node.returns is not None, node.name
            arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            assert all(a.annotation or a.arg == "self" for a in arguments), node.name


def test_everything_public_has_a_doc_string():
    for name in holdfast.__all__:
        assert getattr(holdfast, name).__doc__, name


def test_the_module_exports_nothing_but_its_entry_point():
    """Other libraries of a process must not bind to its copies of their symbols, which may abort."""
    symbols = subprocess.run(["nm", "-D", "--defined-only", _native.__file__], capture_output=True,
                             text=True, check=True).stdout.split("\n")
    names = {line.split()[-1].split("@")[0] for line in symbols if line}
    # A sanitizer adds symbols of its own.
    assert {name for name in names if "san" not in name} == {"PyInit__native"}


def test_the_program_takes_the_python_beside_the_link_by_which_it_is_called(tmp_path):
    """A virtual environment has a link to the program, and a Python that imports the package."""
    program = Path(_native.__file__).parents[2] / "bin" / "holdfast"
    folder = tmp_path / "environment" / "bin"
    folder.mkdir(parents=True)
    (folder / "holdfast").symlink_to(program)
    (folder / "python3").write_text('#!/bin/sh\necho "$0" "$@"\n')
    (folder / "python3").chmod(0o755)
    expected = "-m holdfast.launch -n 2 train.py"
    for call, cwd, path in [(str(folder / "holdfast"), tmp_path, ""),
                            ("environment/bin/holdfast", tmp_path, ""),
                            ("holdfast", tmp_path, f"{folder}:")]:
        variables = {**os.environ, "PATH": path + os.environ["PATH"]}
        variables.pop("HOLDFAST_PYTHON", None)
        ran = subprocess.run([shutil.which(call, path=variables["PATH"]) if path else call, "launch",
                              "-n", "2", "train.py"],
                             cwd=cwd, env=variables, capture_output=True, text=True, check=True)
        python, _, words = ran.stdout.strip().partition(" ")
        assert Path(cwd, python) == folder / "python3" and words == expected
