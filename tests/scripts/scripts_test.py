"""test.sh and setup.sh, run in a folder of their own where every tool is a stand-in."""

import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SCRIPTS = Path(__file__).parents[2] / "scripts"
GOOD = '<testsuite><testcase name="a" status="run"/></testsuite>'

# Writes the report that --output-junit or --junit-xml asks for, then ends as it is told.
RUNNER = f"""#!/bin/bash
for word in "$@"; do [[ $last == --output-junit ]] && report=$word; last=$word; done
for word in "$@"; do [[ $word == --junit-xml=* ]] && report=${{word#*=}}; done
mkdir -p "$(dirname "$report")" && echo '{GOOD}' >"$report"
exit $RUNNER_STATUS
"""


class ScriptsTest(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.root = Path(temporary.name)
        (self.root / "scripts").mkdir()
        self.path = f"{self.root}/bin:{os.environ['PATH']}"

    def take(self, *names: str):
        for name in names:
            shutil.copy(SCRIPTS / name, self.root / "scripts" / name)

    def put(self, name: str, text: str):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text if text.startswith("#!") else f"#!/bin/bash\n{text}\n")
        path.chmod(0o755)

    def run_script(self, name: str, **environment: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            [self.root / "scripts" / name], capture_output=True, text=True, check=False,
            env={**os.environ, "PATH": self.path, **environment})


class TestScriptTest(ScriptsTest):
    def setUp(self):
        super().setUp()
        self.take("test.sh", "environment.sh", "count_tests.py")
        self.put("scripts/build.sh", 'echo "built $*"; [[ $* != "$BROKEN" ]]')
        self.put("bin/ctest", RUNNER.replace("$RUNNER_STATUS", "${CTEST_STATUS:-0}"))
        self.put("bin/pytest", RUNNER.replace("$RUNNER_STATUS", "${PYTEST_STATUS:-0}"))
        self.put(".venv/bin/python",
                 f'if [[ $1 == -m ]]; then exec pytest "$@"; fi; exec {sys.executable} "$@"')

    def expect(self, passed: int, failed: int, **environment: str):
        done = self.run_script("test.sh", **environment)
        self.assertEqual(done.stdout.splitlines()[-1], f"{passed} passed, {failed} failed")
        self.assertEqual(done.returncode != 0, failed != 0, done.stdout + done.stderr)
        self.assertIn("built check holdfast_python_stub", done.stdout)

    def test_good_runs_are_good(self):
        self.expect(2, 0)

    def test_python_runs_although_the_cpp_build_fails(self):
        self.expect(1, 1, BROKEN="check")

    def test_a_failed_build_of_the_module_is_counted(self):
        self.expect(1, 1, BROKEN="check holdfast_python_stub holdfast_program")

    def test_a_runner_that_fails_behind_a_good_report_fails_the_run(self):
        self.expect(2, 1, CTEST_STATUS="8")
        self.expect(2, 1, PYTEST_STATUS="3")

    def test_the_count_is_printed_even_if_counting_fails(self):
        self.put("scripts/count_tests.py", "#! no Python")
        self.put(".venv/bin/python", "exit 127")
        self.expect(0, 1)


class SetupScriptTest(ScriptsTest):
    def setUp(self):
        super().setUp()
        self.take("setup.sh")
        (self.root / "scripts/packages.txt").write_text("tool | command:bash | a | b\n")
        (self.root / "scripts/requirements.txt").write_text("something==1\n")
        self.stamp = self.root / ".venv/holdfast-requirements"

    def set_up(self, **environment: str) -> subprocess.CompletedProcess:
        return self.run_script("setup.sh", HOLDFAST_NO_APT="1", **environment)

    def test_a_broken_installation_is_tried_again(self):
        self.put(".venv/bin/python", "[[ $2 != pip ]]")
        self.stamp.write_text("something==0\n")
        self.assertNotEqual(self.set_up().returncode, 0)
        self.assertFalse(self.stamp.exists())

    def test_a_good_installation_is_stamped_and_kept(self):
        self.put(".venv/bin/python", "echo called >>calls")
        for _ in range(2):
            done = self.set_up()
            self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.stamp.read_text(), "something==1\n")
        # Twice asked for pip, once to install.
        self.assertEqual((self.root / "calls").read_text().count("called"), 3)

    def test_builds_for_another_python_go_when_the_environment_is_made(self):
        self.put("bin/python3", "[[ $2 != venv ]] || { mkdir -p .venv/bin; "
                                "cp bin/python3 .venv/bin/python; }")
        for name in ("check", "release", "wheel", "asan"):
            (self.root / "build" / name).mkdir(parents=True)
        done = self.set_up()
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(os.listdir(self.root / "build"), ["asan"])

    def use_apt(self):
        release = Path("/etc/os-release")
        if not release.exists() or "debian" not in release.read_text():
            self.skipTest("not a Debian system")
        self.put("bin/id", "echo 1000")
        self.put("bin/dpkg-query", "exit 1")
        self.put("bin/apt-get", "exit 1")

    def test_the_command_is_shown_where_sudo_is_refused(self):
        self.use_apt()
        self.put("bin/sudo", "echo not in the sudoers file >&2; exit 1")
        done = self.run_script("setup.sh")
        self.assertNotEqual(done.returncode, 0)
        self.assertRegex(done.stderr, "as root run: .*apt-get install .* tool\n")

    def test_a_system_with_half_of_apt_has_none(self):
        self.use_apt()
        # Only what the script needs to get there, and no dpkg-query.
        (self.root / "bin/dpkg-query").unlink()
        for tool in ("bash", "dirname", "grep", "sed", "uname"):
            (self.root / "bin" / tool).symlink_to(shutil.which(tool))
        self.path = f"{self.root}/bin"
        (self.root / "scripts/packages.txt").write_text("a | command:no-such | b | c\n")
        done = subprocess.run(
            [shutil.which("bash"), self.root / "scripts/setup.sh"], capture_output=True,
            text=True, check=False, env={"PATH": self.path})
        self.assertIn("missing no-such: install b (Debian: a)", done.stderr)


if __name__ == "__main__":
    unittest.main()
