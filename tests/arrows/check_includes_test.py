"""The include check must find the faults that these tests plant, and nothing else."""

import contextlib
import io
import tempfile
import unittest
from pathlib import Path

import check_includes

ARROWS = "base 0 | \nstate 1 base | \nstore 2 base | state\npython 7 base state | \n"
BASE, STATE = '#include "holdfast/base/result.h"\n', '#include "holdfast/state/box.h"\n'
# Uses every arrow.
USES = {"holdfast/state/uses.cpp": BASE, "holdfast/store/uses.cpp": BASE,
        "holdfast/store/uses_test.cpp": STATE, "python/src/uses.cpp": BASE + STATE}


class CheckIncludesTest(unittest.TestCase):
    def check(self, files: dict[str, str], public: str = "",
              uses: dict[str, str] = USES) -> tuple[int, str]:
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            for name, text in {**uses, **files}.items():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_text(text)
            (root / "arrows.txt").write_text(ARROWS)
            (root / "public.txt").write_text(public)
            output = io.StringIO()
            with contextlib.redirect_stdout(output):
                status = check_includes.main(root, root / "arrows.txt", root / "public.txt")
            return status, output.getvalue()

    def assert_fault(self, name: str, line: str, fault: str):
        status, output = self.check({name: f"#pragma once\n{line}\n"})
        self.assertEqual(status, 1)
        self.assertEqual(output, f"{name}:2: {fault}\n")

    def test_declared_and_foreign_includes_pass(self):
        status, _ = self.check({
            "holdfast/state/box.h": '#include <vector>\n#include "holdfast/base/result.h"\n'
                                    '#include "holdfast/state/extent.h"\n',
            "python/src/state.cpp": '#include "errors.h"\n#include "holdfast/state/box.h"\n',
        })
        self.assertEqual(status, 0)

    def test_an_include_upwards_is_seen(self):
        self.assert_fault("holdfast/base/env.h", '#include "holdfast/state/box.h"',
                          "base may not include holdfast/state/box.h: it declares nothing")

    def test_an_include_along_a_layer_or_undeclared_is_seen(self):
        self.assert_fault("holdfast/store/commit.cpp", '#  include <holdfast/state/box.h>',
                          "store may not include holdfast/state/box.h: it declares base")

    def test_the_python_face_is_held_too(self):
        self.assert_fault("python/src/store.cpp", '#include "holdfast/store/commit.h"',
                          "python may not include holdfast/store/commit.h: "
                          "it declares base state")

    def test_tests_are_held_too(self):
        self.assert_fault("holdfast/base/env_test.cpp", '#include "holdfast/store/x.h"',
                          "base may not include holdfast/store/x.h: it declares nothing")

    def test_a_relative_path_cannot_hide_an_arrow(self):
        self.assert_fault("holdfast/base/env.h", '#include "../state/box.h"',
                          '"../state/box.h" is no path from the root; '
                          'expected "holdfast/<part>/..."')

    def test_the_umbrella_is_not_for_parts(self):
        self.assert_fault("holdfast/base/env.h", '#include "holdfast/holdfast.h"',
                          "holdfast/holdfast.h is for users of the library; "
                          "expected the header of a part")

    def test_an_undeclared_folder_is_seen(self):
        status, output = self.check({"holdfast/stray/x.cpp": ""})
        self.assertEqual(status, 1)
        self.assertIn("stray is no declared part", output)

    def test_a_folder_with_too_many_files_is_seen(self):
        files = {f"holdfast/base/f{i}.h": "" for i in range(61)}
        status, output = self.check(files | {"holdfast/base/f_test.cpp": ""})
        self.assertEqual((status, output), (1, "base: 61 files; expected at most 60\n"))

    def test_a_circle_of_includes_is_seen(self):
        status, output = self.check({
            "holdfast/base/a.h": '#include "holdfast/base/b.h"\n',
            "holdfast/base/b.h": '#include "holdfast/base/a.h"\n'})
        self.assertEqual(status, 1)
        self.assertIn("holdfast/base/a.h: includes itself by way of", output)

    def test_a_public_header_that_includes_an_internal_one_is_seen(self):
        files = {"holdfast/base/a.h": '#include "holdfast/base/b.h"\n',
                 "holdfast/base/b.h": '#include "holdfast/base/c.h"\n',
                 "holdfast/base/c.h": ""}
        status, output = self.check(files, "holdfast/base/a.h\nholdfast/base/b.h\n")
        self.assertEqual((status, output),
                         (1, "holdfast/base/b.h:1: holdfast/base/c.h is internal; "
                             "expected a public header\n"))
        public = "".join(f"{name}\n" for name in files)
        self.assertEqual(self.check(files, public)[0], 0)

    def test_an_example_that_includes_an_internal_header_is_seen(self):
        files = {"holdfast/base/a.h": "", "holdfast/base/b.h": "",
                 "examples/cpp/good.cpp": '#include "holdfast/base/a.h"\n'
                                          '#include "holdfast/holdfast.h"\n',
                 "examples/cpp/heat/heat.cpp": '#include "holdfast/base/b.h"\n'}
        status, output = self.check(files, "holdfast/base/a.h\n")
        self.assertEqual((status, output),
                         (1, "examples/cpp/heat/heat.cpp:1: holdfast/base/b.h is internal; "
                             "expected a public header\n"))

    def test_too_many_public_headers_are_seen(self):
        files = {f"holdfast/base/f{i}.h": "" for i in range(26)}
        status, output = self.check(files, "\n".join(files))
        self.assertEqual((status, output), (1, "26 public headers; expected at most 25\n"))

    def test_a_public_header_that_does_not_exist_is_seen(self):
        status, output = self.check({"holdfast/base/a.h": ""}, "holdfast/base/b.h\n")
        self.assertEqual((status, output),
                         (1, "holdfast/base/b.h: is public and does not exist\n"))

    def test_looking_at_nothing_fails(self):
        self.assertEqual(self.check({}, uses={})[0], 2)

    def test_an_arrow_that_nothing_uses_is_seen(self):
        for name, fault in [
                ("holdfast/state/uses.cpp", "state declares base, and does not use it\n"),
                ("holdfast/store/uses_test.cpp", "the tests of store declare state, and do not use it\n")]:
            self.assertEqual(self.check({name: ""}), (1, fault))

    def test_an_arrow_that_only_tests_use_is_seen(self):
        files = {"holdfast/state/uses.cpp": "", "holdfast/state/uses_test.cpp": BASE}
        self.assertEqual(self.check(files), (
            1, "state declares base, which only its tests use; expected TEST_DEPS\n"))

    def test_an_arrow_of_tests_is_not_for_others(self):
        self.assert_fault("holdfast/store/run.cpp", '#include "holdfast/state/box.h"',
                          "store may not include holdfast/state/box.h: it declares base")


if __name__ == "__main__":
    unittest.main()
