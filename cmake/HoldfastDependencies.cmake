# What Holdfast is built on, and why each is here. What the installed library needs again
# stands in holdfastConfig.cmake.in too.
find_package(Threads REQUIRED)
find_package(fmt REQUIRED)            # error messages: C++20 in GCC 12 has no std::format
find_package(nlohmann_json REQUIRED)  # JSON tokens; limits and duplicate keys are ours
find_path(HOLDFAST_XXHASH_DIR xxhash.h REQUIRED)  # XXH3-128, compiled in
find_package(IsaL REQUIRED)           # CRC32C at memory speed on both CPUs

# By target, not by path, so that an installed Holdfast can be moved to another machine.
set(HOLDFAST_ISAL_LIBRARY IsaL::IsaL)
set(HOLDFAST_ISAL_DIR ${IsaL_INCLUDE_DIR})

if(HOLDFAST_TESTS)
  enable_testing()
  find_package(GTest REQUIRED)  # test runner
  find_library(HOLDFAST_RAPIDCHECK_LIBRARY rapidcheck REQUIRED)  # property tests
  include(GoogleTest)
  add_library(holdfast_testing INTERFACE)
  target_link_libraries(holdfast_testing INTERFACE GTest::gtest GTest::gmock GTest::gtest_main
                                                   ${HOLDFAST_RAPIDCHECK_LIBRARY})
endif()
