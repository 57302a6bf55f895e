"""Checks that every file of the repository that a document names exists.

python/tests/documents/test_names.py checks the other things that documents name.
"""

import re
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = "holdfast|python|docs|scripts|tests|bench|examples|cmake|study"
NAMED = re.compile(rf"`((?:{FOLDERS})/[\w./-]+)`")


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

    def test_every_file_of_figures_stands_beside_the_command_that_made_it(self):
        folder = ROOT / "bench/results"
        rows = re.findall(r"^\| `(\w+\.json)` \| `(?:build/release/)?([\w/.]+)",
                          (folder / "README.md").read_text(), re.MULTILINE)
        self.assertEqual(sorted(file for file, _ in rows), sorted(p.name for p in folder.glob("*.json")))
        for file, command in rows:
            source = ROOT / command
            self.assertTrue(source.exists() or source.with_suffix(".cpp").exists(), f"{file}: {command}")

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
