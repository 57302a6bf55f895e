"""Makes docs/studies/idioms.md: what becomes of each way to write a training, and what rehearse says.

    python python/tests/torch/idioms_page.py     # rehearses all scripts of `idioms`; takes minutes

test_idioms.py compares the page with the scripts, and with HOLDFAST_LONG=1 with their rehearsals.
"""

import sys
import tempfile
from pathlib import Path

import idiom
import ranks
from rehearsed import rehearse_idiom

PAGE = Path(__file__).resolve().parents[3] / "docs/studies/idioms.md"
STEPS = 12

HEAD = """# Ways to write a training

What Holdfast does with each of these ways, if the process is killed twice and started again, and what
`holdfast rehearse` says of the script. Every row is a script of `python/tests/torch/idioms`, and
`python/tests/torch/test_idioms.py` kills and compares it; `python/tests/torch/idioms_page.py` has made this
page. *Exact* means: all losses have the same bits as without a kill, and nothing is printed. *Silent*
means: they differ, and nothing is printed. Nobody can know these from inside; a rehearsal finds them. A
rehearsal also compares tensors and objects, so it may be stricter than the losses.

| the training | what Holdfast does | what `holdfast rehearse` says |
|---|---|---|
"""


def row(name, verdict):
    """A line of the table."""
    title, does = idiom.expectation(name)
    return f"| {title.rstrip('.')} | {does.replace('|', '/')} | {verdict} |\n"


def verdict_of(name):
    """What a rehearsal of the script says, in a few words."""
    with tempfile.TemporaryDirectory() as folder:
        found = rehearse_idiom(name, Path(folder), steps=STEPS)
    if not found.json:
        return "the script fails" + (" when it is started again" if "started again" in found.text else "")
    if found.json["exact"]:
        return "exact"
    if not found.json["deterministic"]:
        return "not deterministic by itself"
    if first := found.json["first_difference"]:
        return f"not exact: {first['what']} differs first"
    if found.json["not_saved"]:
        return "not exact: names what is not saved"
    return "not exact: nothing that is saved changes"


def rows_of(page):
    """The verdicts in a page, by the rest of their lines."""
    lines = [line for line in page.splitlines() if line.startswith("| ")][1:]
    return {line.rpartition(" | ")[0]: line.rpartition(" | ")[2].removesuffix(" |") for line in lines}


def main():
    ranks.open_nursery()
    names = sorted(path.stem for path in idiom.FOLDER.glob("*.py"))
    lines = []
    for name in names:
        lines.append(row(name, verdict_of(name)))
        print(lines[-1], end="", flush=True)
    PAGE.write_text(HEAD + "".join(sorted(lines)))
    ranks.close_nursery()


if __name__ == "__main__":
    import holdfast.torch.checkpointer  # noqa: F401  (imported once, before the fork)

    sys.modules["idioms_page"] = sys.modules["__main__"]
    main()
