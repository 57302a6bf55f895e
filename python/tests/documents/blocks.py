"""README.md and docs/, cut into their blocks of code, for the tests of the documents."""

import re
from dataclasses import dataclass
from pathlib import Path

import holdfast

ROOT = Path(__file__).resolve().parents[3]
BIN = Path(holdfast._native.__file__).parents[2] / "bin"

DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
# These documents have a test of their own, which runs their blocks with packages that are not here.
RUN_BY = {"docs/adapters.md": "python/tests/adapters/test_document.py"}
# Why a block may not be run: <!-- not run: REASON --> on the line before it.
REASONS = {"takes minutes", "needs a GPU", "needs Slurm", "needs an object store",
           "needs transformers", "needs MPI", "needs several processes", "is a part of a C++ program"}
LANGUAGES = {"python", "sh", "text", "json", "cpp"}

BLOCK = re.compile(r"(?:^<!-- not run: (?P<reason>[^>]*?) -->\n)?"
                   r"^(?P<indent> *)```(?P<info>[^\n`]*)\n(?P<body>.*?)^(?P=indent)```$",
                   re.M | re.S)


@dataclass
class Block:
    document: str
    line: int
    language: str
    name: str  # the second word behind the ```: a file's name, or "message"
    body: str
    reason: str | None  # why it is not run

    def __str__(self):
        return f"{self.document}:{self.line}"


def blocks_of(path):
    text, document = path.read_text(), str(path.relative_to(ROOT))
    for found in BLOCK.finditer(text):
        language, _, name = found["info"].strip().partition(" ")
        yield Block(document, text.count("\n", 0, found.start()) + 1, language, name,
                    found["body"], found["reason"])


ALL = {str(path.relative_to(ROOT)): list(blocks_of(path)) for path in DOCUMENTS}
HERE = {document: blocks for document, blocks in ALL.items() if document not in RUN_BY}
