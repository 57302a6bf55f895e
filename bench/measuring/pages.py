"""Tables of documents, and the sections between two marks that scripts make from figures."""

from collections.abc import Iterable
from pathlib import Path


def table(head: list[str], rows: Iterable[list[str]]) -> str:
    """A table of Markdown, without a new line at its end."""
    first, *others = (f"| {' | '.join(row)} |" for row in (head, *rows))
    return "\n".join([first, "|---" * len(head) + "|", *others])


class Section:
    """What stands in a page between two lines, each a mark of its own."""

    def __init__(self, page: Path, begin: str, end: str) -> None:
        self.page, self.begin, self.end = page, begin, end

    @classmethod
    def made_by(cls, page: Path, command: str) -> "Section":
        return cls(page, f"<!-- made by {command}: begin -->\n", f"<!-- made by {command}: end -->\n")

    def held(self) -> str:
        """The text that stands there."""
        return self._cut()[1]

    def written(self, text: str) -> str:
        """The whole page with another text there."""
        before, _, after = self._cut()
        return before + self.begin + text + self.end + after

    def write(self, text: str) -> None:
        self.page.write_text(self.written(text))

    def _cut(self) -> tuple[str, str, str]:
        before, begun, rest = self.page.read_text().partition(self.begin)
        held, ended, after = rest.partition(self.end)
        if not (begun and ended):
            raise SystemExit(f"{self.page}: has no lines {self.begin.strip()} and {self.end.strip()}; "
                             "expected both, because a section is written between them")  # fmt: skip
        return before, held, after
