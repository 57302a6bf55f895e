# Two commands for a newcomer: make test and make demo. Each first installs what the machine
# lacks (scripts/setup.sh says what), and can be run again at no cost.

.PHONY: help setup build test test-all demo bench campaign study study-quick clean distclean

help:
	@echo "make test      all quick tests, C++ and Python, on an optimised build with asserts"
	@echo "make demo      what Holdfast does, on this machine, with the same build"
	@echo "make bench     the benchmarks"
	@echo "make campaign  the study of flipped bits (docs/studies/corruption.md); takes hours, and"
	@echo "               continues where it was stopped"
	@echo "make study     how other frameworks save: cost, formats, scale, bits, crashes; takes hours, goes on"
	@echo "               where it was stopped, and installs the frameworks first. make study-quick: less of it"
	@echo "make test-all  also: address, undefined-behaviour and thread sanitizers, leaks,"
	@echo "               hundreds of kills, the wheel, Slurm, the documents in a fresh clone,"
	@echo "               the adapters with their real packages, clang-tidy, fuzzing, the other CPU"
	@echo "make build     .venv/bin/holdfast and the Python module in .venv, without tests"
	@echo "make setup     Debian packages and the Python environment in .venv, if missing"
	@echo "make clean     removes build/; make distclean removes .venv and .cache too"
	@echo
	@echo "HOLDFAST_PIP_OPTIONS    more options for pip, such as --index-url ..."
	@echo "HOLDFAST_NO_APT=1       install no Debian packages, but say what is missing"
	@echo "HOLDFAST_JOBS=N         how many processes build and test (default: one for each core)"
	@echo "HOLDFAST_KILLS=N        processes to kill in test-all (default: 300; 10 in make test)"
	@echo "HOLDFAST_FUZZ_SECONDS=N time for each fuzz target in test-all (default: 60)"

setup:
	@scripts/setup.sh

build: setup
	@scripts/build.sh check holdfast_program holdfast_python_stub

test: setup
	@scripts/test.sh

test-all:
	@scripts/setup.sh all
	@scripts/test-all.sh

demo: setup
	@scripts/demo.sh

bench: setup
	@scripts/bench.sh

campaign: setup
	@scripts/campaign.sh

study: setup
	@scripts/study.sh

study-quick: setup
	@scripts/study.sh --quick

clean:
	rm -rf build dist

distclean: clean
	rm -rf .venv .cache
