"""How long `holdfast plan` takes for large models, and how much memory.

    plan_time_bench.py [--all] [--program PATH] [--json PATH]

Layouts only; no tensor exists. --all adds the largest plan, which takes minutes and 12 GB.
"""

import json
import resource
import subprocess
import sys
from pathlib import Path

from measuring.machines import this_run
from measuring.options import parser
from measuring.results import progress, write

ROOT = Path(__file__).resolve().parents[1]
PLANS = {
    "70B, 16,384 to 8,192 ranks, placed":
        ("--model", "llama-3-70b", "--from", "tp=8,pp=16,dp=128", "--to", "tp=8,pp=16,dp=64", "--place"),
    "405B with ZeRO 3 by layers, 16,384 to 8,192 ranks":
        ("--model", "llama-3-405b", "--from", "dp=16384,zero=3,shard=layers",
         "--to", "dp=8192,zero=3,shard=layers"),
}  # fmt: skip
QUICK = 1  # of these plans


def measure(program: Path, options: tuple[str, ...]) -> dict[str, float]:
    """Seconds of a core, and the most memory of a child so far; so the plans must come in rising order."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    said = subprocess.run([program, "plan", "--json", *options], check=True, stdout=subprocess.PIPE).stdout
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    json.loads(said)
    return {"s": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
            "memory": 1024 * after.ru_maxrss}  # fmt: skip


def main() -> int:
    made = parser(__doc__, json=None)
    made.add_argument("--all", action="store_true", help="the largest plan, too")
    made.add_argument("--program", type=Path, default=ROOT / ".venv/bin/holdfast")
    args = made.parse_args()
    figures: dict = {"run": this_run(), "plans": {}}
    for name, options in list(PLANS.items())[: None if args.all else QUICK]:
        seen = figures["plans"][name] = measure(args.program, options) | {"command": " ".join(options)}
        progress(f"{name}: {seen['s']:.1f} s, {seen['memory'] / 1e9:.1f} GB")
        write(args.json, figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
