"""Compares every #include of a part with the dependencies that the part declares.

    check_includes.py SOURCE_FOLDER ARROWS_FILE PUBLIC_FILE

CMake writes the arrows file, with one line for each part: `name layer dep dep ... | dep ...`, where
only tests may use those at the end. A part is the folder holdfast/<name>; the part `python` is
python/src. This script also refuses a dependency that is declared and not used, a folder with more
than 60 files, tests not counted, and files that include each other in a circle. It prints one line
for each fault. It exits with 1 if there are faults, and with 2 if it found no files at all, so that
a wrong path cannot pass.

CMake writes the public file, too, with one public header on each line. Public headers are
installed, so they may include only each other, and so may the programs in examples/cpp. There may be
at most 25, without holdfast/holdfast.h, which includes them.
"""

import collections
import re
import sys
from pathlib import Path
from typing import NamedTuple

INCLUDE = re.compile(r'^\s*#\s*include\s*(["<])([^">]+)[">]')
SUFFIXES = {".h", ".cpp"}
MOST_FILES = 60
MOST_PUBLIC = 25
UMBRELLA = "holdfast/holdfast.h"
TEST = re.compile(r"(_test\.cpp|_fuzz\.cpp|testing\.h|testing\.cpp)$")


class Part(NamedTuple):
    """The parts that a part and its tests may include, itself not among them."""

    deps: set[str]
    test_deps: set[str]

    def allowed(self, is_test: bool) -> set[str]:
        return self.deps | self.test_deps if is_test else self.deps


def read_arrows(path: Path) -> dict[str, Part]:
    parts = {}
    for line in filter(str.strip, path.read_text().splitlines()):
        (name, _layer, *deps), test_deps = (half.split() for half in line.split("|"))
        parts[name] = Part(set(deps), set(test_deps))
    return parts


def part_of(path: Path) -> str:
    """The part that a file belongs to, from its path below the source folder."""
    return "python" if path.parts[0] == "python" else path.parts[1]


def fault_of(part: str, quote: str, target: str, allowed: set[str]) -> str | None:
    pieces = target.split("/")
    if pieces[0] != "holdfast":
        if quote == '"' and part != "python":
            return f'"{target}" is no path from the root; expected "holdfast/<part>/..."'
        return None
    if len(pieces) < 3:
        return f"{target} is for users of the library; expected the header of a part"
    if pieces[1] not in {part, *allowed}:
        uses = " ".join(sorted(allowed)) or "nothing"
        return f"{part} may not include {target}: it declares {uses}"
    return None


def check_file(root: Path, path: Path, arrows: dict[str, Part]) -> list[str]:
    shown = path.relative_to(root)
    part = part_of(shown)
    if part not in arrows:
        return [f"{shown}: {part} is no declared part"]
    faults, allowed = [], arrows[part].allowed(is_test=bool(TEST.search(path.name)))
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if match := INCLUDE.match(line):
            if fault := fault_of(part, match[1], match[2], allowed):
                faults.append(f"{shown}:{number}: {fault}")
    return faults


def unused(root: Path, files: list[Path], arrows: dict[str, Part]) -> list[str]:
    """One line for each dependency that a part declares and nothing in it includes."""
    used = collections.defaultdict(set)
    for file in files:
        used[part_of(file.relative_to(root)), bool(TEST.search(file.name))] |= {
            match[2].split("/")[1] for line in file.read_text().splitlines()
            if (match := INCLUDE.match(line)) and match[2].startswith("holdfast/")}
    faults = [f"{name} declares {dep}, which only its tests use; expected TEST_DEPS"
              if dep in used[name, True] else f"{name} declares {dep}, and does not use it"
              for name, part in arrows.items() for dep in sorted(part.deps - used[name, False])]
    return faults + [f"the tests of {name} declare {dep}, and do not use it"
                     for name, part in arrows.items()
                     for dep in sorted(part.test_deps - used[name, True])]


def sources(root: Path) -> list[Path]:
    files = [*root.glob("holdfast/*/**/*"), *root.glob("python/src/**/*")]
    return sorted(file for file in files if file.suffix in SUFFIXES)


def large_folders(files: list[Path]) -> list[str]:
    counts = collections.Counter(file.parent.name for file in files if not TEST.search(file.name))
    return [f"{part}: {count} files; expected at most {MOST_FILES}"
            for part, count in counts.items() if count > MOST_FILES]


def circles(root: Path, files: list[Path]) -> list[str]:
    """One line for each file that includes itself through other files."""
    targets = {str(file.relative_to(root)): [match[2] for line in file.read_text().splitlines()
                                             if (match := INCLUDE.match(line))] for file in files}
    faults, done = [], set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        if name in path:
            faults.append(f"{name}: includes itself by way of {' '.join(path[path.index(name):])}")
        elif name not in done:
            for target in targets.get(name, ()):
                visit(target, (*path, name))
            done.add(name)

    for name in targets:
        visit(name, ())
    return faults


def internal_includes(root: Path, file: Path, public: set[str]) -> list[str]:
    """One line for each include of a header of this project that is not public."""
    faults = []
    for number, line in enumerate(file.read_text().splitlines(), 1):
        match = INCLUDE.match(line)
        if match and match[2].startswith("holdfast/") and match[2] not in public:
            faults.append(f"{file.relative_to(root)}:{number}: {match[2]} is internal; "
                          "expected a public header")
    return faults


def public_faults(root: Path, public: list[str]) -> list[str]:
    faults = []
    if len(public) > MOST_PUBLIC:
        faults.append(f"{len(public)} public headers; expected at most {MOST_PUBLIC}")
    for header in public:
        if (root / header).is_file():
            faults += internal_includes(root, root / header, set(public))
        else:
            faults.append(f"{header}: is public and does not exist")
    for example in sorted(root.glob("examples/cpp/**/*.cpp")):
        faults += internal_includes(root, example, {*public, UMBRELLA})
    return faults


def main(root: Path, arrows_file: Path, public_file: Path) -> int:
    arrows = read_arrows(arrows_file)
    public = public_file.read_text().split()
    files = sources(root)
    if not files:
        print(f"{root}: no sources under holdfast/")
        return 2
    faults = [fault for file in files for fault in check_file(root, file, arrows)]
    faults += unused(root, files, arrows) + large_folders(files) + circles(root, files)
    faults += public_faults(root, public)
    print("\n".join(faults) or f"{len(files)} files, every include is declared; "
          f"{len(public)} public headers include only each other")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(*map(Path, sys.argv[1:])))
