"""Ways in which people write trainings: each is exact after kills, or says that it is not.

The scripts are in the folder `idioms`; idiom.py says what they look like.
"""

import idiom
import pytest

NAMES = sorted(path.stem for path in idiom.FOLDER.glob("*.py"))


@pytest.mark.parametrize("name", NAMES)
def test_an_idiom_does_what_its_script_says(tmp_path, name):
    _, expected = idiom.expectation(name)
    plain = idiom.train(name, tmp_path / "plain")
    killed = idiom.train(name, tmp_path / "killed", idiom.KILLS)
    print(plain.printed, killed.printed)  # shown if the test fails
    kind, _, text = expected.partition(": ")
    if kind == "refuses":
        assert killed.code == 1 and _is_refused(killed.printed, text)
        return
    assert (plain.code, killed.code) == (0, 0)
    if kind.startswith("exact"):
        assert not killed.contradictions and killed.losses == plain.losses
        assert len(plain.losses) == idiom.STEPS
    if text:
        assert text in killed.printed
    else:
        assert not plain.printed and not killed.printed


def _is_refused(printed, text):
    """True if the process ended with an error of one sentence that has the text."""
    last = printed.strip().splitlines()[-1]
    return text in last and len(last) < 400
