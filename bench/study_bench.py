"""Makes docs/studies/schedule.md and the tables of docs/studies/elastic.md again, and checks them.

    study_bench.py

Bars: pages and data are those in docs, byte for byte, on every machine; no policy beats the optimum
on the optimum's own objective by more than chance explains; and no plan moves more than it must.
"""

import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PROGRAM = ROOT / "build/release/bin/holdfast"
OBJECTIVES = {"delay", "progress", "explore", "priced"}


def check_elastic() -> bool:
    """True if study/elastic.py makes the tables that stand in the page."""
    start = time.perf_counter()
    sys.path.insert(0, str(ROOT / "study"))
    import elastic

    makers = elastic.makers(elastic.Program(PROGRAM))
    same = all(elastic.section(name).held() == make() for name, make in makers.items())
    print(f"  tables of docs/studies/elastic.md made in {time.perf_counter() - start:.0f} s: "
          f"{'equal  PASS' if same else 'differ from those in docs  FAIL'}")
    return same


def main() -> int:
    elastic = check_elastic()
    start = time.perf_counter()
    import schedule

    made = schedule.make_files(schedule.Program(PROGRAM))
    same = all(text == path.read_text() for path, text in made.items())
    lines = made[schedule.PAGE].splitlines()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    own = {row[0]: (int(row[2]), int(row[3])) for row in rows
           if len(row) == 6 and row[0] in OBJECTIVES}
    beaten = sum(lost for _, lost in own.values())
    good = own.keys() == OBJECTIVES and beaten == 0
    print(f"  docs/studies/schedule.md made in {time.perf_counter() - start:.0f} s: "
          f"{'equal  PASS' if same else 'differs from the file in docs  FAIL'}")
    print(f"  optimum beaten on its own objective: {beaten} of "
          f"{sum(compared for compared, _ in own.values())}; expected 0 for all four objectives  "
          f"{'PASS' if good else 'FAIL'}")
    return 0 if same and good and elastic else 1


if __name__ == "__main__":
    sys.exit(main())
