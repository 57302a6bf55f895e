"""Functions are short: the median of all functions in holdfast/ is at most 8 lines.

Counts from the line with the name to the closing brace, tests left out. The source is formatted,
so that a function ends at the first brace with the indentation of its first line.
"""

import re
import statistics
import unittest
from collections.abc import Iterator
from pathlib import Path

SOURCES = Path(__file__).parents[2] / "holdfast"
MOST = 8
NO_FUNCTION = r"namespace|struct|class|enum|union|if|for|while|switch|else|do|return|case|extern"
BEGIN = re.compile(rf"( {{0,4}})(?!{NO_FUNCTION}|//|#|}})[\w:<>,*& \[\]~]+\(")


def lengths(lines: list[str]) -> Iterator[int]:
    """The number of lines of each function."""
    at = 0
    while at < len(lines):
        begin = BEGIN.match(lines[at])
        opens = at
        # The parameters of a function may take several lines; a declaration ends with ";".
        while begin and opens + 1 < len(lines) and not re.search(r"[{;}]\s*(//.*)?$", lines[opens]):
            opens += 1
        if begin and re.search(r"\{.*\}$", lines[opens]):
            yield opens - at + 1
        elif begin and re.search(r"\{\s*(//.*)?$", lines[opens]):
            closes = opens + 1
            while closes < len(lines) and not lines[closes].startswith(begin[1] + "}"):
                closes += 1
            yield closes - at + 1
            opens = closes
        at = opens + 1


class FunctionLengths(unittest.TestCase):
    def test_counting(self) -> None:
        source = "int f(int a,\n      int b) {\n  return a;\n}\nint g();\nint h() { return 1; }"
        self.assertEqual(list(lengths(source.split("\n"))), [4, 1])

    def test_the_median_is_small(self) -> None:
        files = [path for path in SOURCES.rglob("*") if path.suffix in (".h", ".cpp")
                 and not re.search("_test|_testing|_fuzz", path.name)]
        found = [n for path in files for n in lengths(path.read_text().split("\n"))]
        self.assertGreater(len(found), 1000)
        self.assertLessEqual(statistics.median(found), MOST)


if __name__ == "__main__":
    unittest.main()
