"""scripts/count_tests.py must notice every way in which a run of tests can fail."""

import contextlib
import io
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))
import count_tests

PASSED = '<testcase name="a" status="run"/>'
FAILED = '<testcase name="b" status="fail"><failure message=""/></testcase>'
BROKEN = '<testcase name="c"><error message="fixture"/></testcase>'
SKIPPED = ('<testcase name="d" status="notrun">'
           '<skipped message="SKIP_REGULAR_EXPRESSION_MATCHED"/></testcase>')
NOT_BUILT = ('<testcase name="e" status="notrun">'
             '<skipped message="Unable to find executable"/></testcase>')
PYTEST_SKIPPED = '<testcase name="f"><skipped type="pytest.skip" message="why"/></testcase>'


class CountTestsTest(unittest.TestCase):
    def count(self, *reports: str | None, statuses: list[int] | None = None) -> tuple[int, str]:
        """Counts the reports. None stands for a report that is missing."""
        with tempfile.TemporaryDirectory() as folder:
            paths = [Path(folder) / f"{i}.xml" for i in range(len(reports))]
            for path, report in zip(paths, reports, strict=True):
                if report is not None:
                    path.write_text(report)
            output = io.StringIO()
            with contextlib.redirect_stdout(output), contextlib.redirect_stderr(io.StringIO()):
                arguments = [f"{path}={status}" for path, status
                             in zip(paths, statuses or [0] * len(paths), strict=True)]
                status = count_tests.main(arguments)
            return status, output.getvalue()

    def suite(self, *cases: str) -> str:
        return f"<testsuite>{''.join(cases)}</testsuite>"

    def test_reports_add_up(self):
        pytest = f"<testsuites>{self.suite(PASSED, PYTEST_SKIPPED)}</testsuites>"
        result = self.count(self.suite(PASSED, PASSED, SKIPPED), pytest)
        self.assertEqual(result, (0, "3 passed, 0 failed, 2 skipped\n"))

    def test_failures_and_errors_fail(self):
        result = self.count(self.suite(PASSED, FAILED), self.suite(BROKEN))
        self.assertEqual(result, (1, "1 passed, 2 failed\n"))

    def test_a_test_that_could_not_start_failed(self):
        self.assertEqual(self.count(self.suite(PASSED, NOT_BUILT)),
                         (1, "1 passed, 1 failed\n"))

    def test_a_suite_without_tests_failed(self):
        for empty in (self.suite(), self.suite(SKIPPED), "", None):
            self.assertEqual(self.count(self.suite(PASSED), empty),
                             (1, "1 passed, 1 failed\n"))

    def test_a_runner_that_failed_behind_a_good_report_is_one_failure(self):
        good, bad = self.suite(PASSED), self.suite(PASSED, FAILED)
        self.assertEqual(self.count(good, good, statuses=[0, 3]), (1, "2 passed, 1 failed\n"))
        self.assertEqual(self.count(good, bad, statuses=[8, 1]), (1, "2 passed, 2 failed\n"))


if __name__ == "__main__":
    unittest.main()
