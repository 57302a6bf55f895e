"""The other frameworks in which the training of the digits goes on, and where they are installed."""

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

from frameworks.tables import read_table, translate

ROOT = Path(__file__).resolve().parents[2]
FOLDER = "study/corruption/frameworks"


@dataclass(frozen=True)
class Framework:
    name: str
    environment: str  # of scripts/foreign_environment.sh
    ending: str  # of its checkpoints

    @property
    def python(self) -> str:
        """Its Python, relative to the root."""
        return f".cache/{self.environment}/bin/python"

    def is_installed(self) -> bool:
        return (ROOT / self.python).exists()

    def command(self, start: Path) -> list[str]:
        return [self.python, f"{FOLDER}/train_{self.name}.py", "--start", str(start)]

    def translate_plan(self, plan: Path, out: Path) -> None:
        """Writes a plan of the PyTorch file as one of the file of this framework."""
        given = json.loads(plan.read_text())
        out.write_text(json.dumps(translate(given, read_table(f"digits.{self.name}"))))


FRAMEWORKS = {each.name: each for each in (Framework("keras", "tensorflow", ".weights.h5"),
                                           Framework("chainer", "chainer", ".h5"))}  # fmt: skip


def export_start(python: str, checkpoint: Path, out: Path, environment: dict[str, str]) -> None:
    """Writes what every framework starts from, unless it is there."""
    if not out.exists():
        fresh = out.with_suffix(".tmp.npz")
        subprocess.run([python, f"{FOLDER}/export.py", checkpoint, fresh], check=True, cwd=ROOT,
                       env=environment)  # fmt: skip
        fresh.rename(out)


def convert_base(framework: Framework, start: Path, out: Path,
                 environment: dict[str, str]) -> None:
    """Writes the checkpoint in the format of a framework, unless it is there."""
    if not out.exists():
        fresh = out.with_name(f"tmp-{out.name}")
        subprocess.run([*framework.command(start), "--save", fresh], check=True, cwd=ROOT,
                       env=environment, stderr=subprocess.DEVNULL)  # fmt: skip
        fresh.rename(out)
