"""Flips single bits in checkpoints of a ResNet-50 on a GPU, and shows what becomes of the training.

    campaign_gpu.py --holdfast PROGRAM [--trials 385] [--bits 30] [--steps 20] [--json PATH] [--folder PATH]

Trains examples/train_digits.py --model resnet50 for 400 steps, and then runs `holdfast campaign run
--serve` from that checkpoint: each trial flips one bit of the model and trains on. The golden runs
must agree in every bit, and every trial must be recorded; else the exit code is 1.

The figures have the harm by layer, under our wider rule and by accuracy. The records of all trials lie
beside the file of figures, compressed, so that they can be judged by another rule later.
"""

import argparse
import json
import lzma
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
from measuring import results  # noqa: E402: it is in the folder above
from measuring.machines import this_run  # noqa: E402
from measuring.options import parser  # noqa: E402

TRAIN = [sys.executable, str(ROOT / "examples/train_digits.py"), "--model", "resnet50",
         "--device", "cuda"]


RULES = ("outcome", "accuracy:5", "accuracy:1")
KEPT = ("campaign.json", "trials.jsonl")


def run_campaign(args: argparse.Namespace, base: Path, folder: Path) -> str | None:
    """What the campaign prints, or None if it failed."""
    run = subprocess.run(
        [args.holdfast, "campaign", "run", str(base), "--tensors", "model.*", "--flips", "1",
         "--bits", args.bits, "--checksums", "consistent", "--trials", str(args.trials), "-o",
         str(folder), "--serve", "--json", "--", *TRAIN, "--steps", str(args.steps), "--serve"],
        stdout=subprocess.PIPE, text=True)  # fmt: skip
    print(run.stdout)
    return None if run.returncode else run.stdout


def count_harm(program: str, folder: Path) -> dict[str, Any]:
    """The harm under each rule: of all trials, and by the layer that was struck."""
    harm, layers = {}, {}
    for rule in RULES:
        seen = json.loads(subprocess.run(
            [program, "campaign", "analyse", str(folder), "--rule", rule, "--json"], check=True,
            stdout=subprocess.PIPE, text=True).stdout)  # fmt: skip
        harm[rule] = seen["harm"]
        for each in seen["by_layer"]:
            layer = layers.setdefault(each["name"], {"trials": each["trials"]})
            layer[rule] = each["harm"]["count"]
    return {"harm": harm, "by_layer": layers}


def keep_records(folder: Path, figures: Path | None) -> None:
    """Puts the records beside the file of figures."""
    if figures is None:
        return
    for name in KEPT:
        path = figures.with_name(f"{figures.stem}.{name}.xz")
        path.write_bytes(lzma.compress((folder / name).read_bytes()))


def main() -> int:
    made = parser(__doc__, folder=Path("/dev/shm"), json=None)
    made.add_argument("--holdfast", required=True, help="the program")
    made.add_argument("--trials", type=int, default=385)
    made.add_argument("--bits", default="all", help="which bits may flip, such as 30")
    made.add_argument("--steps", type=int, default=20, help="steps of each trial")
    args = made.parse_args()
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    with tempfile.TemporaryDirectory(dir=args.folder, prefix="campaign-") as name:
        base, folder = Path(name) / "base.pt", Path(name) / "results"
        subprocess.run([*TRAIN, "--steps", "400", "--save", str(base)], check=True)
        begun = time.monotonic()
        said = run_campaign(args, base, folder)
        if said is None:
            return 1
        seconds = time.monotonic() - begun
        recorded = len((folder / "trials.jsonl").read_text().splitlines())
        figures = {"trials": recorded, "bits": args.bits, "steps": args.steps,
                   "seconds": round(seconds, 1),
                   "seconds_a_trial": round(seconds / max(recorded, 1), 3),
                   "run": this_run(), "campaign": json.loads(said),
                   **count_harm(args.holdfast, folder)}  # fmt: skip
        keep_records(folder, args.json)
    print({key: figures[key] for key in ("trials", "bits", "seconds", "harm")}, flush=True)
    results.write(args.json, figures)
    return 0 if recorded == args.trials else 1


if __name__ == "__main__":
    sys.exit(main())
