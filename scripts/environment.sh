# Variables and functions for the scripts that build and test. They source it in the repository root.

# The next four lines let builds and checkouts in different folders share what ccache has compiled.
# ccache takes another name of the compiler or another locale for a different build, so both are
# fixed here unless the caller has set them.
export CXX=${CXX:-g++}
export LC_CTYPE=${LC_CTYPE:-C.UTF-8}
export CCACHE_BASEDIR=${CCACHE_BASEDIR:-$PWD}
export CCACHE_NOHASHDIR=${CCACHE_NOHASHDIR:-1}
# Without this, ccache keeps nothing that was compiled with precompiled headers.
export CCACHE_SLOPPINESS=${CCACHE_SLOPPINESS:-pch_defines,time_macros}
# Tests start hundreds of Python processes, and each imports torch. That takes more than twice as long
# if Python may not keep what it has compiled.
unset PYTHONDONTWRITEBYTECODE
jobs=${HOLDFAST_JOBS:-$(nproc)}
export CMAKE_BUILD_PARALLEL_LEVEL=$jobs
export UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1}

# show_progress LABEL LOG COMMAND...: runs the command and shows one line of progress.
show_progress() { python3 scripts/progress.py "$@"; }

# print_next COMMAND: prints what to try next after make test or make demo.
print_next() {
  echo "try next:"
  echo "  .venv/bin/holdfast --help"
  echo "  .venv/bin/python -c 'import holdfast; help(holdfast.Checkpointer)'"
  echo "  $1"
}
