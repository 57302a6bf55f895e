"""Runs the scripts of make in a temporary folder in which small scripts replace all tools."""

import os
import pty
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SCRIPTS = Path(__file__).parents[2] / "scripts"
GOOD = '<testsuite><testcase name="a" status="run"/></testsuite>'

# Replaces ctest and pytest: writes the report that --output-junit or --junit-xml asks for, then
# exits with $RUNNER_STATUS.
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

    def run_script(self, name: str, *arguments: str,
                   **environment: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            [self.root / "scripts" / name, *arguments], capture_output=True, text=True,
            check=False, env={**os.environ, "PATH": self.path, **environment})


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

    def test_the_lines_before_the_count_say_what_to_try_next(self):
        lines = self.run_script("test.sh").stdout.splitlines()
        self.assertIn("  .venv/bin/holdfast --help", lines[-6:-1])

    def test_the_count_is_printed_even_if_counting_fails(self):
        self.put("scripts/count_tests.py", "#! no Python")
        self.put(".venv/bin/python", "exit 127")
        self.expect(0, 1)


class BuildScriptTest(ScriptsTest):
    def setUp(self):
        super().setUp()
        self.take("build.sh", "environment.sh", "progress.py")
        self.put("bin/cmake", 'echo "cmake $*"; [[ $* != "$BROKEN" ]]')
        self.put("build/check/bin/holdfast", "echo the program of the build")
        self.put("build/check/python/holdfast/__init__.py", "version = 7")
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", self.root / ".venv"],
                       check=True)

    def run_in_environment(self, *command: str) -> str:
        program, *arguments = command
        return subprocess.run([self.root / ".venv/bin" / program, *arguments], check=True,
                              capture_output=True, text=True, cwd=self.root,
                              env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"}).stdout

    def test_the_environment_runs_what_was_built(self):
        done = self.run_script("build.sh", "check")
        self.assertEqual(done.returncode, 0, done.stderr)
        seen = self.run_in_environment("python", "-c", "import holdfast as h; print(h.version)")
        self.assertEqual(seen, "7\n")
        self.assertEqual(self.run_in_environment("holdfast"), "the program of the build\n")

    def test_other_presets_leave_the_environment_alone(self):
        self.assertEqual(self.run_script("build.sh", "release").returncode, 0)
        self.assertFalse((self.root / ".venv/bin/holdfast").exists())

    def test_what_pip_installed_in_the_environment_stays(self):
        self.put(".venv/bin/holdfast", "echo the program of pip")
        self.assertEqual(self.run_script("build.sh", "check").returncode, 0)
        self.assertEqual(self.run_in_environment("holdfast"), "the program of pip\n")

    def test_output_is_shown_only_of_the_step_that_fails(self):
        done = self.run_script("build.sh", "check", "a", "b", BROKEN="--preset check")
        self.assertNotEqual(done.returncode, 0)
        self.assertEqual(done.stderr, "cmake --preset check\n")
        done = self.run_script("build.sh", "check", "a", "b",
                               BROKEN="--build build/check --target a b")
        self.assertNotEqual(done.returncode, 0)
        self.assertEqual(done.stderr, "cmake --build build/check --target a b\n")
        self.assertFalse((self.root / ".venv/bin/holdfast").is_symlink())


class ProgressTest(ScriptsTest):
    # Prints what Ninja prints for two steps, the second of which fails.
    FAILING = "echo '[1/2] good'; sleep 0.2; echo '[2/2] bad'; echo FAILED: bad; exit 3"

    def progress(self, script: str, **options) -> subprocess.CompletedProcess:
        return subprocess.run(
            [sys.executable, SCRIPTS / "progress.py", "--every", "0.05", "building",
             self.root / "log", "bash", "-c", script], text=True, check=False,
            **{"capture_output": True, **options})

    def describe(self, *arguments) -> str:
        sys.path.insert(0, str(SCRIPTS))
        self.addCleanup(sys.path.remove, str(SCRIPTS))
        from progress import describe
        return describe("building", *arguments)

    def test_the_time_left_follows_the_steps_that_are_done(self):
        self.assertEqual(self.describe(120, 224, 138, 138),
                         "building 120 of 224, about 2 min left")
        self.assertEqual(self.describe(200, 224, 138, 138),
                         "building 200 of 224, about 17 s left")
        self.assertEqual(self.describe(3, 224, 2, 2), "building 3 of 224")
        self.assertEqual(self.describe(224, 224, 300, 300), "building 224 of 224")
        self.assertEqual(self.describe(0, 0, 0, 41), "building, 41 s so far")

    def test_the_time_left_shrinks_during_a_long_step(self):
        self.assertEqual(self.describe(2, 4, 60, 80), "building 2 of 4, about 40 s left")
        self.assertEqual(self.describe(2, 4, 60, 130), "building 2 of 4")

    def test_the_look_for_new_files_is_no_step(self):
        done = self.progress("echo '[0/2] Re-checking globbed directories...'; sleep 0.3")
        self.assertNotIn(" of ", done.stdout)
        self.assertIn("building, 1 s so far\n", done.stdout)

    def test_a_failure_shows_what_failed_and_keeps_its_status(self):
        done = self.progress(self.FAILING)
        self.assertEqual((done.returncode, done.stderr), (3, "FAILED: bad\n"))
        self.assertIn("building 1 of 2\n", done.stdout)
        self.assertEqual((self.root / "log").read_text(), "[1/2] good\n[2/2] bad\nFAILED: bad\n")

    def test_success_shows_no_output_of_the_command(self):
        done = self.progress("echo a warning; echo '[1/1] good'")
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "", ""))

    def test_a_silent_command_still_moves_the_line(self):
        lines = self.progress("sleep 0.5").stdout.splitlines()
        self.assertGreater(lines.count("building, 1 s so far"), 2)

    def test_a_command_that_is_killed_fails(self):
        self.assertEqual(self.progress("kill -9 $$").returncode, 137)

    def test_on_a_terminal_one_line_is_redrawn_and_erased(self):
        ours, theirs = pty.openpty()
        self.progress("echo '[1/2] good'; sleep 0.3", capture_output=False, stdout=theirs)
        os.close(theirs)
        seen = os.read(ours, 65536).decode()
        os.close(ours)
        self.assertIn("\rbuilding 1 of 2\033[K", seen)
        self.assertNotIn("\n", seen)
        self.assertTrue(seen.endswith("\r\033[K"), seen)


class SetupScriptTest(ScriptsTest):
    def setUp(self):
        super().setUp()
        self.take("setup.sh", "progress.py")
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

    def test_pip_is_heard_only_when_it_fails(self):
        self.put(".venv/bin/python", "[[ $2 != pip ]] || { echo a warning; exit $PIP_STATUS; }")
        self.assertIn("a warning", self.set_up(PIP_STATUS="1").stderr)
        done = self.set_up(PIP_STATUS="0")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertNotIn("a warning", done.stdout + done.stderr)

    def test_a_good_installation_is_stamped_and_kept(self):
        self.put(".venv/bin/python", "echo called >>calls")
        for _ in range(2):
            done = self.set_up()
            self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.stamp.read_text(), "something==1\n")
        # Each run asks whether pip is there, and only the first one installs.
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
        # The path has only the tools that the script needs up to this point, without dpkg-query.
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
