"""Counts the house: lines, parts, dependencies, and what exists more than once.

    python3 scripts/house.py [--json] [BUILD]

BUILD is a configured build folder (build/check), for the dependencies of the parts and for the time
that its tasks took: after `make test` from a clean clone with an empty cache of the compiler. If it also
has the Python package, a small training is run, and the files that a save and a resume enter are
counted. What must be zero is held by tests: tests/arrows/check_includes.py and tests/scripts/house_test.py.
"""

import argparse
import collections
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests/arrows"))
from check_includes import read_arrows, sources, unused  # noqa: E402: it is among the tests

NOT_PRODUCT = re.compile(r"(_test|_bench|_fuzz)\.cpp$|testing\.(h|cpp)$")
MOST_DEPENDENCIES = 12
FACES = {"cli", "python"}  # they show everything, so they may have more
LONG = 400  # lines of a file
# Files of the Python package whose functions a small training calls. More is a hint that an idea is spread
# over small files, or that something runs that the training does not use.
MOST_ENTERED = {"save": 38, "resume": 48}
# Files that mend bytes. Those that only offer it are faces, or the part itself.
MENDS = re.compile(r"(^|_)(repair|mend|rescue)")
# What only holdfast/statistics and holdfast/campaign/outcome.h may have: the mathematics of intervals
# and tests, functions of their names, and the list of outcomes that are harm.
STATISTICS = re.compile(
    r"\blgamma\(|\berfc\(|NormalDist|\.stdev\(|\bresamples\b|\"timed out\",\s*\"N-EV\"|"
    r"^def \w*(wilson|newcombe|mcnemar|fisher|holm|mean_interval|median_interval)\w*\(", re.M)

# Names of the JSON library. Others read and write by `base`, so that one place knows the limits and one
# decides how JSON looks. These two read the tokens of documents that must not become trees.
JSON_LIBRARY = re.compile(r"nlohmann|\bOrderedJson\b|\bJson\b|\"holdfast/base/json\.h\"")
READ_TOKENS = {"holdfast/formats/safetensors_header.cpp", "holdfast/state/object_json.cpp"}


def lines_of(files: list[Path]) -> int:
    return sum(file.read_text().count("\n") for file in files)


def cpp_product() -> list[Path]:
    files = [*ROOT.glob("holdfast/**/*.h"), *ROOT.glob("holdfast/**/*.cpp"),
             *ROOT.glob("python/src/*.h"), *ROOT.glob("python/src/*.cpp")]
    return [file for file in files if not NOT_PRODUCT.search(file.name)]


def python_product() -> list[Path]:
    return list(ROOT.glob("python/holdfast/**/*.py"))


def tests() -> list[Path]:
    return list(ROOT.glob("python/tests/**/*.py"))


def unused_arrows(build: Path) -> list[str]:
    return unused(ROOT, sources(ROOT), read_arrows(build / "arrows.txt"))


def with_many_dependencies(build: Path) -> set[str]:
    """The parts that declare more than so many others, those of their tests not counted."""
    return {name for name, part in read_arrows(build / "arrows.txt").items()
            if len(part.deps) > MOST_DEPENDENCIES}


def test_programs() -> int:
    """The parts on one layer that have tests share a program of them (cmake/HoldfastPart.cmake)."""
    layers = set()
    for part in {file.parent for file in ROOT.glob("holdfast/*/*_test.cpp")}:
        found = re.search(r"\bLAYER (\d+)", (part / "CMakeLists.txt").read_text())
        layers.add(max(1, int(found[1])) if found else None)
    return len(layers)


def build_seconds(log: str) -> dict[str, float]:
    """What Ninja's log says that compiling and linking took, each task once, and by what it is for.

    A figure means something only if the log is that of a build from nothing, with an empty cache of
    the compiler.
    """
    outputs = {}  # of the last build of each output: a task with several has a line for each
    for line in log.splitlines():
        if not line.startswith("#"):
            begin, end, _, output, task = line.split("\t")
            outputs[output] = (int(begin), int(end), task)
    tasks = {task: output for output, task in outputs.items()}
    seconds: collections.Counter[str] = collections.Counter()
    for (begin, end, _), output in tasks.items():
        seconds[_kind_of(output)] += (end - begin) / 1000
    return dict(seconds)


def _kind_of(output: str) -> str:
    """What a task with this output is for: an object or a precompiled header of something, or a link."""
    if not output.endswith((".o", ".gch")):
        return "links"
    if re.search(r"_test\.dir|_testing\.dir|^tests/", output):
        return "tests"
    return "python" if output.startswith("python/") else "product"


def tables_of_names() -> list[Path]:
    """The files that know how a model calls its tensors."""
    return [file for file in ROOT.glob("holdfast/**/*.cpp") if not NOT_PRODUCT.search(file.name)
            and re.search(r"self_attn\.q_proj\.(weight|\*)", file.read_text())]


def mending_elsewhere() -> list[Path]:
    """The files that mend and are not in the part `repair`."""
    return [file for file in cpp_product() if MENDS.search(file.name)
            and file.parent.name not in ("repair", "cli")]


def files_entered(build: Path) -> dict[str, int]:
    """How many files of the package a save and a resume run code of, in a small training."""
    script = Path(__file__).with_name("files_entered.py")
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([ROOT / ".venv/bin/python", script, folder], check=True, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                              env=os.environ | {"PYTHONPATH": str(build.resolve() / "python")})
    return {what: len(files) for what, files in json.loads(done.stdout).items()}


def names_twice(files: list[Path]) -> dict[str, int]:
    """Functions at the top of files, by name, that more than one file of Python defines."""
    found: collections.Counter[str] = collections.Counter()
    for file in files:
        found.update(set(re.findall(r"^def (\w+)\(", file.read_text(), re.M)))
    return {name: count for name, count in found.items() if count > 1 and name != "main"
            and not name.startswith("test_")}


def doubles() -> list[str]:
    """Mechanisms that once existed twice, and do again."""
    faults = []
    for file in ROOT.glob("holdfast/corruption/*"):
        if re.search(r"repair|mend|reference_checkpoint", file.name):
            faults.append(f"{file.relative_to(ROOT)}: mends; expected it in holdfast/repair")
    for file in ROOT.glob("holdfast/**/*.cpp"):
        if re.search(r"^(const )?Object\* find\w*\((const )?Object\b", file.read_text(), re.M):
            if file.name != "object.cpp":
                faults.append(f"{file.relative_to(ROOT)}: finds the key of an Object; expected "
                              "find_key() of holdfast/state/object.h")
    faults += [f"{file.relative_to(ROOT)}: has names of tensors; expected them in "
               "holdfast/models/tensor_tables.cpp" for file in tables_of_names()
               if file.name != "tensor_tables.cpp"]
    return faults + statistics_again(ROOT) + json_library_outside_base(ROOT)


def statistics_again(root: Path) -> list[str]:
    """The files that have statistics of their own."""
    files = [*root.glob("holdfast/**/*.cpp"), *(file for folder in ("bench", "study", "python/holdfast")
                                                for file in root.glob(f"{folder}/**/*.py"))]
    return [f"{file.relative_to(root)}: has statistics; expected those of holdfast/statistics"
            for file in files if not NOT_PRODUCT.search(file.name)
            and file.parent.name not in ("statistics", "campaign")
            and STATISTICS.search(file.read_text())]


def json_library_outside_base(root: Path) -> list[str]:
    """The files of the product that use the JSON library by themselves."""
    files = [*root.glob("holdfast/**/*.h"), *root.glob("holdfast/**/*.cpp"), *root.glob("python/src/*")]
    return [f"{name}: uses the JSON library; expected json_place.h or json_fields.h of holdfast/base"
            for name in (file.relative_to(root).as_posix() for file in files)
            if not NOT_PRODUCT.search(name) and not name.startswith("holdfast/base/")
            and name not in READ_TOKENS and JSON_LIBRARY.search((root / name).read_text())]


def count(build: Path | None) -> dict[str, int]:
    cpp, python, helpers = cpp_product(), python_product(), names_twice(tests())
    counted = {
        "lines of product C++": lines_of(cpp),
        "lines of product Python": lines_of(python),
        f"files of {LONG} lines or more": sum(lines_of([file]) >= LONG for file in cpp + python),
        "parts": len(list(ROOT.glob("holdfast/*/CMakeLists.txt"))),
        "names of helpers that several tests define": len(helpers),
        "definitions of these": sum(helpers.values()),
        "mechanisms that exist twice again": len(doubles()),
        "tables of tensor names": len(tables_of_names()),
        "lines of mending outside repair": lines_of(mending_elsewhere()),
        "test programs": test_programs(),
    }
    if build is not None:
        counted["dependencies that nothing uses"] = len(unused_arrows(build))
        counted[f"parts with more than {MOST_DEPENDENCIES} dependencies"] = len(
            with_many_dependencies(build))  # fmt: skip
    if build is not None and (build / ".ninja_log").exists():
        seconds = build_seconds((build / ".ninja_log").read_text())
        counted["seconds of compile and link"] = round(sum(seconds.values()))
        counted |= {f"seconds of {kind}": round(of) for kind, of in sorted(seconds.items())}
    if build is not None and (build / "python/holdfast/_native.pyi").exists():
        counted |= {f"Python files entered by a {what}": number
                    for what, number in files_entered(build).items()}  # fmt: skip
    return counted


def main() -> None:
    parser = argparse.ArgumentParser(description="Counts lines, parts, dependencies and doubles.")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("build", nargs="?", type=Path, help="a configured build folder")
    options = parser.parse_args()
    counted = count(options.build)
    if options.json:
        print(json.dumps(counted, indent=2))
        return
    for name, number in counted.items():
        print(f"{number:>8,}  {name}")
    for fault in doubles():
        print(fault)


if __name__ == "__main__":
    main()
