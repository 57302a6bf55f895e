"""Flips single bits in checkpoints of a ResNet-50 on a GPU, and shows what becomes of the training.

    campaign_gpu.py --holdfast PROGRAM [--trials 385] [--steps 20] [--json PATH] [--folder PATH]

Trains examples/train_digits.py --model resnet50 for 400 steps, and then runs `holdfast campaign run
--serve` from that checkpoint: each trial flips one bit of the model and trains on. The golden runs
must agree in every bit, and every trial must be recorded; else the exit code is 1.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
from measuring import results  # noqa: E402: it is in the folder above
from measuring.options import parser  # noqa: E402

TRAIN = [sys.executable, str(ROOT / "examples/train_digits.py"), "--model", "resnet50",
         "--device", "cuda"]


def main() -> int:
    made = parser(__doc__, folder=Path("/dev/shm"), json=None)
    made.add_argument("--holdfast", required=True, help="the program")
    made.add_argument("--trials", type=int, default=385)
    made.add_argument("--steps", type=int, default=20, help="steps of each trial")
    args = made.parse_args()
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    with tempfile.TemporaryDirectory(dir=args.folder, prefix="campaign-") as name:
        base, results = Path(name) / "base.pt", Path(name) / "results"
        subprocess.run([*TRAIN, "--steps", "400", "--save", str(base)], check=True)
        begun = time.monotonic()
        run = subprocess.run(
            [args.holdfast, "campaign", "run", str(base), "--tensors", "model.*", "--flips", "1",
             "--checksums", "consistent", "--trials", str(args.trials), "-o", str(results),
             "--serve", "--json", "--", *TRAIN, "--steps", str(args.steps), "--serve"],
            stdout=subprocess.PIPE, text=True)
        seconds = time.monotonic() - begun
        print(run.stdout)
        if run.returncode:
            return 1
        recorded = len((results / "trials.jsonl").read_text().splitlines())
        figures = {"trials": recorded, "steps": args.steps, "seconds": round(seconds, 1),
                   "seconds_a_trial": round(seconds / max(recorded, 1), 3),
                   "campaign": json.loads(run.stdout)}
    print({key: value for key, value in figures.items() if key != "campaign"}, flush=True)
    results.write(args.json, figures)
    return 0 if recorded == args.trials else 1


if __name__ == "__main__":
    sys.exit(main())
