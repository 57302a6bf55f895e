"""Checks that every measured figure of the documents has a source: it stands in a section that a program
makes, or in the same paragraph or row as a link to its file below bench/results.

What is a number with ms, s, MB/s, GB/s, %, x, times or points, or with the whole words of them, but no measurement of ours, is exempt: a
figure that somebody published, with a letter of papers.md in its cell or paragraph such as (A); and what a
page lists in a comment of its own, such as defaults, limits and examples:

    <!-- figures that nobody measured: 10 s; 20 % -->

The comments are counted. Raise the number only for figures that are no measurement.
"""

import re
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FIGURE = re.compile(r"(?<![\w.,])\d[\d,]*(?:\.\d+)?\s?(?:ms|s|MB/s|GB/s|%|x|times|points|(?:milli|micro)?seconds?"
                    r"|per cent|percent|(?:mega|giga)bytes (?:a|per) second)(?![\w/%])")  # fmt: skip
MADE = re.compile(r"<!-- (?:made by .*?: begin|the table .*?) -->.*?"
                  r"<!-- (?:made by .*?: end|end of the table) -->", re.DOTALL)  # fmt: skip
CODE = re.compile(r"^(`{3,}).*?^\1\n|`[^`\n]*`", re.DOTALL | re.MULTILINE)
EXEMPT = re.compile(r"<!-- figures that nobody measured: (.*?) -->", re.DOTALL)
PUBLISHED = re.compile(r"\((?:[ACNRD](?:, )?)+[^)]*\)")  # the letters of papers.md
SOURCE = "bench/results"
# Pages that a program makes as a whole; a test compares each.
MADE_PAGES = {"checkpoints.md", "corruption.md", "idioms.md", "schedule.md"}
COUNT = 61  # of the figures that the comments exempt


def pages() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")),
            *sorted(page for page in (ROOT / "docs/studies").glob("*.md") if page.name not in MADE_PAGES)]


def paragraphs(text: str) -> list[str]:
    """The paragraphs and rows of a page, without code and without what programs make."""
    text = CODE.sub("", MADE.sub("\n\n", EXEMPT.sub("", text)))
    return [part for part in re.split(r"\n\s*\n|\n(?=\|)|\n(?=- )", text) if part.strip()]


def without_published(part: str) -> str:
    """The cells of a row, or the paragraph, that have no letter of papers.md."""
    cells = part.split("|") if part.startswith("|") else [part]
    return "|".join(cell for cell in cells if not PUBLISHED.search(cell))


def bare_figures(text: str) -> list[str]:
    """The figures of a page that have no source and are no published ones."""
    return [" ".join(found.split()) for part in paragraphs(text) if SOURCE not in part
            for found in FIGURE.findall(without_published(part))]  # fmt: skip


def exempt_figures(text: str) -> list[str]:
    return [one.strip() for found in EXEMPT.findall(text) for one in " ".join(found.split()).split("; ")]


class FiguresTest(unittest.TestCase):
    def test_every_measured_figure_has_a_source(self):
        bare = {str(page.relative_to(ROOT)): sorted(set(bare_figures(text)) - set(exempt_figures(text)))
                for page in pages() for text in [page.read_text()]}
        self.assertEqual({page: found for page, found in bare.items() if found}, {},
                         "link the file below bench/results, or list what is no measurement")

    def test_what_is_exempt_is_there_and_counted(self):
        count = 0
        for page in pages():
            text = page.read_text()
            exempt = exempt_figures(text)
            self.assertEqual(sorted(set(exempt) - set(bare_figures(text))), [], f"{page.name}: is not there")
            self.assertEqual(len(exempt), len(set(exempt)), page.name)
            count += len(exempt)
        self.assertEqual(count, COUNT)

    def test_figures_are_found(self):
        text = ("It takes 5 ms.\n\n| a | 1,234.5 GB/s |\n| b | 3 s (C) | 4 s |\n\nIn `bench/x.py` 3 % of\n"
                "[this](bench/results/a.json), 12 x.\n\n```\n7 s\n```\n<!-- made by x: begin -->\n8 s\n"
                "<!-- made by x: end -->\nstep 2 of 3, 10 samples, 2.5x, 4x4\nabout 5 milliseconds, 2 seconds, 7 percent\n")
        self.assertEqual(bare_figures(text), ["5 ms", "1,234.5 GB/s", "4 s", "2.5x", "5 milliseconds", "2 seconds",
                                              "7 percent"])

    def test_a_page_can_exempt_settings(self):
        text = "Waits 5 s.\n<!-- figures that nobody measured: 5 s -->\n"
        self.assertEqual((bare_figures(text), exempt_figures(text)), (["5 s"], ["5 s"]))


if __name__ == "__main__":
    unittest.main()
