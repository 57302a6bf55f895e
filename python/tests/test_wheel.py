"""The wheel that `pip install .` builds contains all it needs, and works without the sources."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import holdfast

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel"]
    offline = ["--no-index", "--no-deps", "--no-build-isolation"]
    result = subprocess.run(
        [*pip, *offline, "--wheel-dir", str(folder), str(ROOT)],
        capture_output=True, text=True,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    (file,) = folder.glob("*.whl")
    return file


def test_the_wheel_holds_package_module_and_stubs(wheel):
    files = set(zipfile.ZipFile(wheel).namelist())
    sources = (ROOT / "python" / "holdfast").rglob("*")
    python = {f"holdfast/{file.relative_to(ROOT / 'python' / 'holdfast')}"
              for file in sources if file.suffix in {".py", ".typed"}}
    assert python | {"holdfast/_native.pyi"} <= files
    assert [f for f in files if f.startswith("holdfast/_native.") and f.endswith(".so")]


def test_the_wheel_holds_nothing_else(wheel):
    tops = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    version = holdfast.__version__
    assert tops - {f"holdfast-{version}.data"} == {"holdfast", f"holdfast-{version}.dist-info"}


def test_the_wheel_runs_where_only_it_is(wheel, tmp_path):
    zipfile.ZipFile(wheel).extractall(tmp_path)
    code = (f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import holdfast; "
            "print(holdfast.__file__, holdfast.intersect(holdfast.Box([(0, 4)]), "
            "holdfast.Box([(2, 9)])))")
    result = subprocess.run([sys.executable, "-I", "-c", code], cwd=tmp_path,
                            capture_output=True, text=True, check=True)
    assert result.stdout.split(maxsplit=1) == [str(tmp_path / "holdfast" / "__init__.py"),
                                               "Box([(2, 4)])\n"]
