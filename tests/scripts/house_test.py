"""What was made one mechanism stays one: house_test.py [BUILD], a configured build folder."""

import os
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import house  # noqa: E402: it is beside the scripts

# Without a build, what needs the dependencies that CMake wrote is skipped.
BUILD = Path(sys.argv.pop()) if len(sys.argv) > 1 and Path(sys.argv[-1]).is_dir() else None


class HouseTest(unittest.TestCase):
    def test_no_mechanism_exists_twice_again(self):
        self.assertEqual(house.doubles(), [])

    def test_statistics_that_come_back_are_seen(self):
        planted = {"study/own.py": "def wilson(hits, trials):\n", "bench/a/t.py": "x = s.stdev(y)\n",
                   "study/list.py": 'HARM = ("crashed", "timed out", "N-EV")\n',
                   "holdfast/cli/own.cpp": "double x = std::erfc(y);\n"}  # fmt: skip
        fine = {"bench/uses.py": "from holdfast.statistics import holm, wilson_interval\n",
                "holdfast/statistics/statistics.cpp": "std::lgamma(x)\n"}  # fmt: skip
        with tempfile.TemporaryDirectory() as folder:
            for name, text in (planted | fine).items():
                path = Path(folder) / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
            seen = house.statistics_again(Path(folder))
        self.assertEqual(sorted(fault.partition(":")[0] for fault in seen), sorted(planted))

    def test_the_json_library_outside_of_base_is_seen(self):
        planted = {"holdfast/cli/own.cpp": "OrderedJson json;\n", "holdfast/env/a.h": "const Json& json;\n",
                   "holdfast/plan/b.cpp": '#include "holdfast/base/json.h"\n',
                   "python/src/c.cpp": "#include <nlohmann/json.hpp>\n"}  # fmt: skip
        fine = {"holdfast/base/json.cpp": "nlohmann::json\n", "holdfast/cli/d.cpp": "JsonPlace at;\n",
                "holdfast/cli/e_test.cpp": "Json json;\n",
                "holdfast/state/object_json.cpp": "nlohmann::json_sax<Json>\n"}  # fmt: skip
        with tempfile.TemporaryDirectory() as folder:
            for name, text in (planted | fine).items():
                path = Path(folder) / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
            seen = house.json_library_outside_base(Path(folder))
        self.assertEqual(sorted(fault.partition(":")[0] for fault in seen), sorted(planted))

    def test_names_of_tensors_are_in_one_table(self):
        self.assertEqual([file.name for file in house.tables_of_names()], ["tensor_tables.cpp"])

    @unittest.skipIf(BUILD is None, "no build folder was given")
    def test_every_dependency_is_used_and_only_faces_have_many(self):
        self.assertEqual(house.unused_arrows(BUILD), [])
        self.assertLessEqual(house.with_many_dependencies(BUILD), house.FACES)

    @unittest.skipIf(BUILD is None or not (BUILD / "python/holdfast/_native.pyi").exists()
                     or os.environ.get("HOLDFAST_LONG") != "1",
                     "takes seconds: needs a build folder with the Python package, and HOLDFAST_LONG=1")
    def test_a_save_and_a_resume_enter_few_files(self):
        entered = house.files_entered(BUILD)
        self.assertLessEqual(entered["save"], house.MOST_ENTERED["save"])
        self.assertLessEqual(entered["resume"], house.MOST_ENTERED["resume"])

    def test_a_part_with_many_dependencies_is_seen(self):
        names = [f"p{i}" for i in range(house.MOST_DEPENDENCIES + 1)]
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "arrows.txt").write_text(
                f"wide 3 {' '.join(names)} |\nfull 3 {' '.join(names[1:])} | {names[0]}\nbase 0 |\n")
            self.assertEqual(house.with_many_dependencies(Path(folder)), {"wide"})

    def test_mending_outside_of_repair_is_seen_by_its_name(self):
        self.assertTrue(all(map(house.MENDS.search, ("seal_mend.cpp", "repair.h", "step_repair.cpp"))))
        self.assertFalse(any(map(house.MENDS.search, ("recommend.cpp", "amendment.h"))))

    def test_the_seconds_of_a_task_count_once_and_those_of_its_last_run(self):
        log = "\n".join(["# ninja log v5", "0\t9000\t0\tholdfast/a/x.cpp.o\tff",
                         "0\t4000\t0\tholdfast/a/x.cpp.o\tff", "4000\t6000\t0\ta_test\tab",
                         "4000\t6000\t0\ta_test_tests.cmake\tab",
                         "0\t1000\t0\tholdfast/a/CMakeFiles/a_test.dir/y.cpp.o\t12",
                         "0\t500\t0\tpython/module.cpp.o\t13"])  # fmt: skip
        self.assertEqual(house.build_seconds(log),
                         {"product": 4.0, "links": 2.0, "tests": 1.0, "python": 0.5})

    def test_it_counts(self):
        counted = house.count(None)
        self.assertGreater(counted["lines of product C++"], 10_000)
        self.assertGreater(counted["lines of product Python"], 10_000)


if __name__ == "__main__":
    unittest.main()
