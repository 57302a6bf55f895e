# Each folder is one part, and each part is one CMake target. A part names its layer and the parts
# that it uses, and TEST_DEPS that only its tests use. If one of them is on its own layer or above,
# configuring fails here. One that is not used fails a test (tests/arrows/check_includes.py).
#
#   holdfast_part(NAME state LAYER 1 DEPS base PUBLIC box.h SOURCES box.cpp seal.cpp)
#
# PUBLIC are the headers that a C++ user may include: they are installed, and may include only public
# headers themselves (tests/arrows/check_includes.py). All other headers are internal.
# LIBS are foreign libraries that the part's headers include, PRIVATE_LIBS those that only its
# sources include. Most presets compile several sources of a part as one unit, to save time. ALONE
# are sources that must be compiled separately, because they define private names that other
# sources define, too. FAST are sources whose loops run over all bytes of a checkpoint: they have -O3
# in every build type. A LIGHT part reads, decides and reports, and leaves the bytes to the parts below
# it: a release compiles it with -O1, in two thirds of the time. A FACE is how people use the library
# from outside of C++, and not part of it. COMPONENT_IF is the name of a variable: if it is false, the
# part is left out of the build. The part is an optional component of the library: it is installed,
# but a program that wants it names it (find_package(holdfast COMPONENTS mpi), holdfast::mpi), and
# holdfast/holdfast.h does not include it. TESTING are sources that only tests use: they become a
# library beside the part that the tests of this part and of all parts above it are linked with. The
# *_test.cpp of all parts on one layer become one test program, layer4_test, because linking a program
# for each part takes long. test_formats has only those of one part, and is built when it is asked for.
# In the fuzz preset each *_fuzz.cpp becomes a fuzz program. The files are found by their names, so that
# none is forgotten.

function(holdfast_part)
  cmake_parse_arguments(PART "LIGHT;FACE" "NAME;LAYER;COMPONENT_IF"
                        "DEPS;TEST_DEPS;PUBLIC;SOURCES;LIBS;PRIVATE_LIBS;ALONE;FAST;TESTING" ${ARGN})
  if(PART_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "${PART_NAME}: unknown arguments ${PART_UNPARSED_ARGUMENTS}")
  endif()

  holdfast_declare_arrows(${PART_NAME} ${PART_LAYER} DEPS ${PART_DEPS} TEST_DEPS ${PART_TEST_DEPS})
  foreach(header IN LISTS PART_PUBLIC)
    set_property(GLOBAL APPEND PROPERTY HOLDFAST_PUBLIC holdfast/${PART_NAME}/${header})
    if(NOT PART_COMPONENT_IF)
      set_property(GLOBAL APPEND PROPERTY HOLDFAST_UMBRELLA holdfast/${PART_NAME}/${header})
    endif()
  endforeach()
  if(PART_COMPONENT_IF AND NOT ${PART_COMPONENT_IF})
    return()
  endif()

  set(target holdfast_${PART_NAME})
  add_library(${target} STATIC ${PART_SOURCES})
  set_source_files_properties(${PART_ALONE} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  set_source_files_properties(${PART_FAST} PROPERTIES COMPILE_OPTIONS -O3
                              SKIP_PRECOMPILE_HEADERS ON)  # these were made without -O3
  target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:$<IF:$<BOOL:${PART_LIGHT}>,-O1,-O2>>)
  set_target_properties(${target} PROPERTIES HOLDFAST_LAYER ${PART_LAYER}
                        POSITION_INDEPENDENT_CODE ON EXPORT_NAME ${PART_NAME})
  target_include_directories(${target} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>)
  target_compile_features(${target} PUBLIC cxx_std_20)
  target_link_libraries(${target} PUBLIC ${PART_LIBS}
                        PRIVATE ${PART_PRIVATE_LIBS} $<BUILD_INTERFACE:holdfast_warnings>)
  target_sources(${target} PUBLIC FILE_SET HEADERS BASE_DIRS ${PROJECT_SOURCE_DIR}
                                           FILES ${PART_PUBLIC})

  holdfast_precompile(${target} holdfast_base <algorithm> <array> <charconv> <chrono> <cmath>
                      <condition_variable> <cstdint> <deque> <filesystem> <functional> <map>
                      <memory> <mutex> <numeric> <optional> <set> <span> <string> <string_view>
                      <thread> <unordered_map> <variant> <vector> <fmt/format.h>)

  foreach(dep IN LISTS PART_DEPS)
    target_link_libraries(${target} PUBLIC holdfast_${dep})
  endforeach()

  if(PART_COMPONENT_IF)
    set_property(GLOBAL APPEND PROPERTY HOLDFAST_COMPONENTS ${PART_NAME})
    add_library(holdfast::${PART_NAME} ALIAS ${target})
  elseif(NOT PART_FACE)
    set_property(GLOBAL APPEND PROPERTY HOLDFAST_LIBRARY_PARTS ${PART_NAME})
  endif()
  if(PART_TESTING)
    holdfast_part_testing(${target} ${PART_TESTING})
  endif()
  holdfast_part_tests(${PART_NAME} ${target} ${PART_LAYER} ${PART_TEST_DEPS})
  holdfast_part_fuzzers(${PART_NAME} ${target})
endfunction()

# holdfast_precompile(TARGET OWNER HEADER...) reads the headers, which nearly all sources include, from
# a form that the compiler made once, for the target OWNER. All its users have its compiler options.
function(holdfast_precompile target owner)
  if(NOT CMAKE_UNITY_BUILD)
    return()
  endif()
  if(target STREQUAL owner)
    target_precompile_headers(${target} PRIVATE ${ARGN})
  else()
    target_precompile_headers(${target} REUSE_FROM ${owner})
  endif()
endfunction()

# holdfast_program(NAME holdfast PART cli SOURCES main.cpp) makes the target holdfast_program,
# whose program is bin/holdfast in the build folder. The program is installed, and is in the wheel
# as a script.
function(holdfast_program)
  cmake_parse_arguments(PROGRAM "" "NAME;PART" "SOURCES" ${ARGN})
  add_executable(holdfast_program ${PROGRAM_SOURCES})
  target_link_libraries(holdfast_program PRIVATE holdfast_${PROGRAM_PART} holdfast_warnings)
  set_target_properties(holdfast_program PROPERTIES OUTPUT_NAME ${PROGRAM_NAME}
                        RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
endfunction()

# Checks every dependency, and records it for the test that compares the #includes with it.
function(holdfast_declare_arrows name layer)
  cmake_parse_arguments(ARROWS "" "" "DEPS;TEST_DEPS" ${ARGN})
  foreach(dep IN LISTS ARROWS_DEPS ARROWS_TEST_DEPS)
    holdfast_check_arrow(${name} ${layer} ${dep})
  endforeach()
  list(JOIN ARROWS_DEPS " " deps)
  list(JOIN ARROWS_TEST_DEPS " " test_deps)
  set_property(GLOBAL APPEND_STRING PROPERTY HOLDFAST_ARROWS
               "${name} ${layer} ${deps} | ${test_deps}\n")
endfunction()

# Fails unless the part `dep` is already declared and has a lower layer.
function(holdfast_check_arrow name layer dep)
  if(NOT TARGET holdfast_${dep})
    message(FATAL_ERROR "${name} (layer ${layer}) may not use ${dep}: no such part below it")
  endif()
  get_target_property(dep_layer holdfast_${dep} HOLDFAST_LAYER)
  if(NOT dep_layer LESS layer)
    message(FATAL_ERROR
            "${name} (layer ${layer}) may not use ${dep} (layer ${dep_layer})")
  endif()
endfunction()

function(holdfast_part_testing target)
  if(NOT HOLDFAST_TESTS AND NOT HOLDFAST_FUZZ)
    return()
  endif()
  add_library(${target}_testing STATIC ${ARGN})
  target_link_libraries(${target}_testing PUBLIC ${target} PRIVATE holdfast_warnings)
  set_property(GLOBAL APPEND PROPERTY HOLDFAST_TESTING ${target}_testing)
endfunction()

# Compiles the tests of a part, as the target formats_test.
function(holdfast_part_tests name target layer)
  if(NOT HOLDFAST_TESTS)
    return()
  endif()
  file(GLOB tests CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*_test.cpp)
  if(NOT tests)
    return()
  endif()
  add_library(${name}_test OBJECT ${tests})
  get_property(testing GLOBAL PROPERTY HOLDFAST_TESTING)
  list(TRANSFORM ARGN PREPEND holdfast_ OUTPUT_VARIABLE test_deps)
  target_link_libraries(${name}_test PRIVATE ${testing} ${target} ${test_deps} holdfast_warnings
                                             holdfast_testing)
  holdfast_precompile(${name}_test base_test <gmock/gmock.h> <gtest/gtest.h> <rapidcheck/gtest.h>
                      <algorithm> <filesystem> <functional> <map> <memory> <set> <span> <string>
                      <thread> <vector> <fmt/format.h>)
  # Test code is large, and most of it runs once, so optimising it takes more time than it saves.
  # The parts under test are still optimised.
  if(NOT CMAKE_BUILD_TYPE STREQUAL "Release")
    target_compile_options(${name}_test PRIVATE -O0)
  endif()
  # With the address sanitizer only the parts are instrumented and not their tests, also to save
  # time.
  if(HOLDFAST_SANITIZE MATCHES "address")
    target_compile_options(${name}_test PRIVATE -fno-sanitize=all)
  endif()
  # clang-tidy is off, because it complains about GoogleTest's macros. The compiler still warns.
  set_target_properties(${name}_test PROPERTIES CXX_CLANG_TIDY "")
  holdfast_test_program(test_${name} ${name}_test)
  set_target_properties(test_${name} PROPERTIES EXCLUDE_FROM_ALL ON)

  if(layer EQUAL 0)
    set(layer 1)  # base alone has few tests
  endif()
  set_property(GLOBAL APPEND PROPERTY HOLDFAST_TESTED_LAYERS ${layer})
  set_property(GLOBAL APPEND PROPERTY HOLDFAST_TESTS_${layer} ${name}_test)
endfunction()

function(holdfast_test_program program)
  add_executable(${program})
  target_link_libraries(${program} PRIVATE ${ARGN})
  set_target_properties(${program} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
endfunction()

# Makes the test program of each layer.
function(holdfast_test_programs)
  get_property(layers GLOBAL PROPERTY HOLDFAST_TESTED_LAYERS)
  list(REMOVE_DUPLICATES layers)
  foreach(layer IN LISTS layers)
    get_property(tests GLOBAL PROPERTY HOLDFAST_TESTS_${layer})
    holdfast_test_program(layer${layer}_test ${tests})
    holdfast_leak_test(layer${layer} environment)
    gtest_discover_tests(layer${layer}_test TEST_PREFIX "layer${layer}." DISCOVERY_TIMEOUT 120
                         PROPERTIES TIMEOUT 600 ${environment})
  endforeach()
endfunction()

# At exit, GCC 12's leak check goes through the whole address space. On x86-64 that takes no time,
# on aarch64 seconds for each process. So on aarch64 single tests do not check for leaks; instead
# each test program is run once with the check, under the label "leaks".
#
# An allocation that is too large gives null, as without a sanitizer: a test asks for one.
function(holdfast_leak_test name environment)
  set(options allocator_may_return_null=1)
  set(${environment} ENVIRONMENT "ASAN_OPTIONS=${options};TSAN_OPTIONS=${options}" PARENT_SCOPE)
  if(HOLDFAST_SANITIZE MATCHES "address" AND CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64")
    set(${environment} ENVIRONMENT ASAN_OPTIONS=${options}:detect_leaks=0 PARENT_SCOPE)
    add_test(NAME ${name}.NothingLeaks COMMAND ${name}_test)
    set_tests_properties(${name}.NothingLeaks PROPERTIES LABELS leaks TIMEOUT 3600
                         ENVIRONMENT ASAN_OPTIONS=${options})
  endif()
endfunction()

function(holdfast_part_fuzzers name target)
  if(NOT HOLDFAST_FUZZ)
    return()
  endif()
  file(GLOB fuzzers CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*_fuzz.cpp)
  get_property(testing GLOBAL PROPERTY HOLDFAST_TESTING)
  foreach(source IN LISTS fuzzers)
    get_filename_component(program ${source} NAME_WE)
    add_executable(${program} ${source})
    target_link_libraries(${program} PRIVATE ${testing} ${target} holdfast_warnings)
    target_link_options(${program} PRIVATE -fsanitize=fuzzer)
    set_target_properties(${program} PROPERTIES
                          RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/fuzz)
    set_property(GLOBAL APPEND_STRING PROPERTY HOLDFAST_FUZZERS
                 "${program} ${CMAKE_CURRENT_SOURCE_DIR}\n")
  endforeach()
endfunction()

# Called after the last part. Makes the test programs, and the target and the header for the whole
# library, and writes the lists of parts and fuzz programs that scripts and tests read.
function(holdfast_finish)
  holdfast_test_programs()
  get_property(arrows GLOBAL PROPERTY HOLDFAST_ARROWS)
  get_property(fuzzers GLOBAL PROPERTY HOLDFAST_FUZZERS)
  file(WRITE ${PROJECT_BINARY_DIR}/arrows.txt "${arrows}")
  file(WRITE ${PROJECT_BINARY_DIR}/fuzzers.txt "${fuzzers}")
  get_property(public GLOBAL PROPERTY HOLDFAST_PUBLIC)
  list(JOIN public "\n" public)
  file(WRITE ${PROJECT_BINARY_DIR}/public_headers.txt "${public}\n")
  get_property(parts GLOBAL PROPERTY HOLDFAST_LIBRARY_PARTS)
  list(TRANSFORM parts PREPEND holdfast_)
  add_library(holdfast_all INTERFACE)
  add_library(holdfast::holdfast ALIAS holdfast_all)
  set_target_properties(holdfast_all PROPERTIES EXPORT_NAME holdfast)
  target_link_libraries(holdfast_all INTERFACE ${parts})
  holdfast_umbrella_header()
endfunction()

# Generates holdfast/holdfast.h, so that no header is forgotten in it.
function(holdfast_umbrella_header)
  string(CONCAT text
         "// All public headers of Holdfast's C++ library, part by part from the bottom up, except\n"
         "// those of optional components.\n"
         "#pragma once\n\n")
  get_property(headers GLOBAL PROPERTY HOLDFAST_UMBRELLA)
  foreach(header IN LISTS headers)
    string(APPEND text "#include \"${header}\"\n")
  endforeach()
  set(folder ${PROJECT_BINARY_DIR}/include)
  file(CONFIGURE OUTPUT ${folder}/holdfast/holdfast.h CONTENT "${text}" @ONLY)
  target_sources(holdfast_all INTERFACE FILE_SET HEADERS BASE_DIRS ${folder}
                                        FILES ${folder}/holdfast/holdfast.h)
endfunction()
