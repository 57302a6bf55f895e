"""How many bytes the reconfigurations of Tenplex's evaluation move, for docs/studies/papers.md.

Prints the table. Exits with 1 if a plan moves more than its lower bound.
"""

import sys

import holdfast

MODEL, HOSTS = "tenplex-6.7b", "4x4"
CHANGES = [
    ("4,2,1", "4,2,2"),
    ("4,2,1", "4,4,1"),
    ("4,2,1", "8,2,1"),
    ("4,2,2", "4,2,1"),
    ("8,2,1", "4,2,1"),
    ("2,4,2", "2,4,1"),
    ("2,4,1", "2,2,1"),
]


def configuration(text):
    tp, pp, dp = text.split(",")
    return f"tp={tp},pp={pp},dp={dp}"


def gigabytes(count):
    return f"{count / 1e9:.2f}"


def main():
    met = True
    print(f"{MODEL} on {HOSTS}, GB")
    print("| tp,pp,dp | needed | moved | moved, placed | between hosts | placed |")
    print("|---|---|---|---|---|---|")
    for source, target in CHANGES:
        plans = [
            holdfast.plan(
                configuration(source), configuration(target),
                model=MODEL, hosts=HOSTS, place=place,
            ).figures
            for place in (False, True)
        ]
        met &= all(p.moved == p.moved_bound for p in plans)
        met &= all(p.crossing == p.crossing_bound for p in plans)
        cells = [gigabytes(plans[0].needed)]
        cells += [gigabytes(p.moved) for p in plans]
        cells += [gigabytes(p.crossing) for p in plans]
        print(f"| {source} → {target} | " + " | ".join(cells) + " |")
    print("moved and between hosts equal their lower bounds" if met else "a bound is MISSED")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
