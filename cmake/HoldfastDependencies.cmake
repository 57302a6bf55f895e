# The libraries that Holdfast uses, and why. Those that programs with an installed Holdfast also
# need are in holdfastConfig.cmake.in, too.
find_package(Threads REQUIRED)
find_package(fmt REQUIRED)            # error messages; GCC 12 has no std::format
find_package(nlohmann_json REQUIRED)  # JSON tokens; our code checks limits and duplicate keys
find_path(HOLDFAST_XXHASH_DIR xxhash.h REQUIRED)  # XXH3-128, compiled in
find_package(IsaL REQUIRED)           # CRC32C at the speed of memory, on x86-64 and aarch64

# Optional libraries: if one is missing, a stub is compiled instead.
if(HOLDFAST_URING)
  find_package(Liburing)              # file transfers with io_uring; without it, by threads
endif()
if(HOLDFAST_ZSTD)
  find_package(Zstd)                  # compressed shards; without it, refused (no_zstd.cpp)
endif()
if(HOLDFAST_FUSE)
  find_package(Fuse3)                 # mounts of datasets; without it, refused (no_mount.cpp)
endif()

# Object stores need all of these. If one is missing, object stores are refused (no_s3.cpp).
set(HOLDFAST_HAS_S3 OFF)
if(HOLDFAST_S3)
  find_package(CURL 7.62)             # HTTP and TLS
  find_package(OpenSSL 3.0)           # SHA-256 and HMAC of signatures
  find_package(EXPAT)                 # XML of answers; our code checks limits
  if(CURL_FOUND AND OPENSSL_FOUND AND EXPAT_FOUND)
    set(HOLDFAST_HAS_S3 ON)
  endif()
endif()

# Messages by MPI. Without an MPI library the component mpi is left out.
set(HOLDFAST_HAS_MPI OFF)
if(HOLDFAST_MPI)
  set(MPI_CXX_SKIP_MPICXX ON)         # the C++ bindings that MPI-3 has removed
  find_package(MPI 3.0 COMPONENTS CXX)
  if(MPI_CXX_FOUND)
    set(HOLDFAST_HAS_MPI ON)
  endif()
endif()

if(HOLDFAST_CLI)
  find_package(CLI11 REQUIRED)        # options, help and exit codes of the command line
endif()

if(HOLDFAST_TESTS)
  enable_testing()
  find_package(GTest REQUIRED)  # test runner
  find_library(HOLDFAST_RAPIDCHECK_LIBRARY rapidcheck REQUIRED)  # property tests
  include(GoogleTest)
  add_library(holdfast_testing INTERFACE)
  target_link_libraries(holdfast_testing INTERFACE GTest::gtest GTest::gmock GTest::gtest_main
                                                   ${HOLDFAST_RAPIDCHECK_LIBRARY})
  # A real S3 server for tests. It is optional, so that the other tests can be built without the
  # Python packages of .venv.
  find_program(HOLDFAST_RCLONE rclone HINTS ${PROJECT_SOURCE_DIR}/.venv/bin)
  set(HOLDFAST_S3_TEST_DEFINITIONS
      HOLDFAST_RCLONE="$<$<BOOL:${HOLDFAST_RCLONE}>:${HOLDFAST_RCLONE}>"
      $<$<BOOL:${HOLDFAST_HAS_S3}>:HOLDFAST_HAS_S3>)
endif()
