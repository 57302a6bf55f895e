# Sourced in the root by what builds and tests.
export CXX=${CXX:-g++}  # by one name everywhere, or ccache would compile twice
# Lets builds and checkouts in different folders share what ccache has compiled.
export CCACHE_BASEDIR=${CCACHE_BASEDIR:-$PWD}
export CCACHE_NOHASHDIR=${CCACHE_NOHASHDIR:-1}
jobs=${HOLDFAST_JOBS:-$(nproc)}
export CMAKE_BUILD_PARALLEL_LEVEL=$jobs
export UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1}
