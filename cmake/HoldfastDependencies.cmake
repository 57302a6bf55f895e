# What Holdfast is built on, and why each is here. What the installed library needs again
# stands in holdfastConfig.cmake.in too.
find_package(Threads REQUIRED)
find_package(fmt REQUIRED)            # error messages: C++20 in GCC 12 has no std::format
find_package(nlohmann_json REQUIRED)  # JSON tokens; limits and duplicate keys are ours
find_path(HOLDFAST_XXHASH_DIR xxhash.h REQUIRED)  # XXH3-128, compiled in
find_package(IsaL REQUIRED)           # CRC32C at memory speed on both CPUs

# Those that the library can do without: a stub takes their place.
if(HOLDFAST_URING)
  find_package(Liburing)              # transfers at the device's speed; else threads
endif()
if(HOLDFAST_ZSTD)
  find_package(Zstd)                  # compressed shards; else refused (no_zstd.cpp)
endif()

# Object stores need all of these. Without one they are refused with a sentence (no_s3.cpp).
set(HOLDFAST_HAS_S3 OFF)
if(HOLDFAST_S3)
  find_package(CURL 7.62)             # HTTP and TLS
  find_package(OpenSSL 3.0)           # SHA-256 and HMAC of signatures
  find_package(EXPAT)                 # XML of answers; limits are ours
  if(CURL_FOUND AND OPENSSL_FOUND AND EXPAT_FOUND)
    set(HOLDFAST_HAS_S3 ON)
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
  # A real S3 server. Optional here, so that a build without Python packages still has its
  # other tests.
  find_program(HOLDFAST_RCLONE rclone HINTS ${PROJECT_SOURCE_DIR}/.venv/bin)
  set(HOLDFAST_S3_TEST_DEFINITIONS
      HOLDFAST_RCLONE="$<$<BOOL:${HOLDFAST_RCLONE}>:${HOLDFAST_RCLONE}>"
      $<$<BOOL:${HOLDFAST_HAS_S3}>:HOLDFAST_HAS_S3>)
endif()
