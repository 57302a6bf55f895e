# Sourced in the root by what builds and tests.
# Lets builds and checkouts in different folders share what ccache has compiled. It tells
# apart the names of a compiler and the locales; a build that pip drives may set both.
export CXX=${CXX:-g++}
export LC_CTYPE=${LC_CTYPE:-C.UTF-8}
export CCACHE_BASEDIR=${CCACHE_BASEDIR:-$PWD}
export CCACHE_NOHASHDIR=${CCACHE_NOHASHDIR:-1}
jobs=${HOLDFAST_JOBS:-$(nproc)}
export CMAKE_BUILD_PARALLEL_LEVEL=$jobs
export UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1}

# show_progress LABEL LOG COMMAND...: runs the command behind one line of progress.
show_progress() { python3 scripts/progress.py "$@"; }

# print_next COMMAND: what somebody may want to try after make test or make demo.
print_next() {
  echo "try next:"
  echo "  .venv/bin/holdfast --help"
  echo "  .venv/bin/python -c 'import holdfast; help(holdfast.Checkpointer)'"
  echo "  $1"
}
