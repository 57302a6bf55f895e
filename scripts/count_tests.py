"""Adds up JUnit reports and prints "N passed, M failed", and ", K skipped" if any test was skipped.

    count_tests.py REPORT=STATUS...

STATUS is the exit status of the program that wrote the report. Exits with 1 if a test failed, if a
report is missing or contains no test that ran (a suite that runs nothing must not count as good),
or if a program failed although its report is good. Each of these counts as one failure. Skipped
tests count neither as passed nor as failed, but are counted.
"""

import sys
import xml.etree.ElementTree as xml
from pathlib import Path

# CTest writes "notrun" both for a test that skipped itself and for a test that could not start.
# These messages are those of a test that skipped itself.
SKIPPED_ITSELF = ("SKIP_REGULAR_EXPRESSION_MATCHED", "SKIP_RETURN_CODE")


def outcome(case: xml.Element) -> str:
    skipped = case.find("skipped")
    if case.find("failure") is not None or case.find("error") is not None:
        return "failed"
    if case.get("status") == "notrun":
        message = "" if skipped is None else skipped.get("message", "")
        return "skipped" if message.startswith(SKIPPED_ITSELF) else "failed"
    if skipped is not None or case.get("status") == "disabled":
        return "skipped"
    return "passed"


def count(report: Path, status: int) -> tuple[int, int, int]:
    try:
        cases = list(xml.parse(report).iter("testcase"))
    except (OSError, xml.ParseError) as error:
        print(f"{report}: {error}", file=sys.stderr)
        return 0, 1, 0
    outcomes = [outcome(case) for case in cases]
    passed, failed, skipped = (outcomes.count(one) for one in ("passed", "failed", "skipped"))
    if passed + failed == 0:
        print(f"{report}: no test ran", file=sys.stderr)
        return 0, 1, 0
    if status != 0 and failed == 0:
        print(f"{report}: all passed, but the run ended with status {status}", file=sys.stderr)
        return passed, 1, skipped
    return passed, failed, skipped


def main(arguments: list[str]) -> int:
    pairs = [argument.rpartition("=") for argument in arguments]
    counts = [count(Path(report), int(status)) for report, _, status in pairs]
    passed, failed, skipped = (sum(column) for column in zip(*counts, strict=True))
    print(f"{passed} passed, {failed} failed" + (f", {skipped} skipped" if skipped else ""))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
