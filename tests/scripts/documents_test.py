"""Checks that every file of the repository that a document names exists, that every page can be
reached from the front page, and that a guide is short enough to be read at once.

python/tests/documents/test_names.py checks the other things that documents name.
"""

import re
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = "holdfast|python|docs|scripts|tests|bench|examples|cmake|study"
NAMED = re.compile(rf"`((?:{FOLDERS})/[\w./-]+)`")
LINK = re.compile(r"\]\(([^)\s#]+)[^)\s]*\)|(?:src|srcset)=\"([^\"]+)\"")
# Pages in which things are looked up. All other pages of docs/ are guides; studies have a folder.
REFERENCES = {"cli.md", "failures.md", "formats.md", "glossary.md"}
WORDS = 1500  # the front page and a guide have fewer, as wc -w counts them


def links(page: Path) -> set[Path]:
    """The files of the repository that the page links to, whether they exist or not."""
    found = (file or image for file, image in LINK.findall(page.read_text()))
    return {(page.parent / link).resolve() for link in found if "://" not in link}


class DocumentsTest(unittest.TestCase):
    def test_named_files_exist(self):
        documents = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
        missing, seen = [], 0
        for document in documents:
            for name in NAMED.findall(document.read_text()):
                seen += 1
                if not (ROOT / name).exists():
                    missing.append(f"{document.name}: {name}")
        self.assertEqual(missing, [])
        self.assertGreater(seen, 30)  # a pattern that finds nothing would pass

    def test_every_link_leads_to_a_file(self):
        pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "bench/results/README.md"]
        missing = [f"{page.relative_to(ROOT)}: {link}" for page in pages for link in links(page)
                   if not link.exists()]
        self.assertEqual(missing, [])

    def test_every_page_can_be_reached_from_the_front_page(self):
        reached, ahead = set(), [ROOT / "README.md"]
        while ahead:
            page = ahead.pop()
            reached.add(page)
            ahead += [link for link in links(page) - reached
                      if link.suffix == ".md" and link.exists()]
        pages = set((ROOT / "docs").rglob("*.md"))
        self.assertEqual({str(page.relative_to(ROOT)) for page in pages - reached}, set())
        self.assertGreater(len(pages), 30)

    def test_the_list_of_documents_has_all_of_them(self):
        index = ROOT / "docs/README.md"
        pages = set((ROOT / "docs").rglob("*.md")) - {index}
        self.assertEqual({str(page.relative_to(ROOT)) for page in pages - links(index)}, set())

    def test_the_front_page_and_each_guide_have_fewer_than_1500_words(self):
        guides = [ROOT / "README.md",
                  *(page for page in (ROOT / "docs").glob("*.md") if page.name not in REFERENCES)]
        words = {str(page.relative_to(ROOT)): len(page.read_text().split()) for page in guides}
        self.assertEqual({name: n for name, n in words.items() if n >= WORDS}, {})
        self.assertGreater(len(words), 20)

    def test_every_file_of_figures_stands_beside_the_command_that_made_it(self):
        folder = ROOT / "bench/results"
        rows = re.findall(r"^\| `(\w+\.json)` \| `(?:build/release/)?([\w/.]+)",
                          (folder / "README.md").read_text(), re.MULTILINE)
        files = sorted(path.name for path in folder.glob("*.json"))
        self.assertEqual(sorted(file for file, _ in rows), files)
        for file, command in rows:
            source = ROOT / command
            there = source.exists() or source.with_suffix(".cpp").exists()
            self.assertTrue(there, f"{file}: {command}")

    def test_every_test_of_this_folder_is_run(self):
        registered = re.findall(r"\b(\w+_test\.(?:py|sh))\b", (ROOT / "tests/CMakeLists.txt").read_text())
        run_elsewhere = [name for script in (ROOT / "scripts").glob("*.sh")
                         for name in re.findall(r"tests/scripts/(\w+_test\.\w+)", script.read_text())]  # fmt: skip
        tests = {path.name for path in (ROOT / "tests/scripts").glob("*_test.*")}
        self.assertEqual(tests - set(registered) - set(run_elsewhere), set(), "name it in tests/CMakeLists.txt")
        self.assertGreater(len(tests), 10)

    def test_no_script_names_a_host_to_download_from(self):
        """apt and pip know their hosts, and the user can give them others."""
        patterns = ["Makefile", "scripts/*.sh", "scripts/requirements*.txt", "bench/device/*.sh",
                    "cmake/*.cmake"]
        scripts = [path for pattern in patterns for path in ROOT.glob(pattern)]
        naming = [path.name for path in scripts if re.search(r"https?://\w", path.read_text())]
        self.assertEqual(naming, [])

    def test_the_readme_names_the_two_commands_that_do_the_set_up(self):
        blocks = re.findall(r"```sh\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
        commands = {line.split("#")[0].strip(): line for block in blocks for line in block.splitlines()}
        for command in ("make demo", "make test"):
            self.assertIn(command, commands)
            self.assertRegex(commands[command], r"# .*\d+ minutes")  # how long it takes
            target = command.split()[1]
            self.assertRegex((ROOT / "Makefile").read_text(), rf"(?m)^{target}: setup$")


if __name__ == "__main__":
    unittest.main()
