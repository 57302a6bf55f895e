# One folder is one part is one target. A part names its layer and what it uses; using
# anything on its own layer or above is refused here, at configure time.
#
#   holdfast_part(NAME state LAYER 1 DEPS base PUBLIC box.h SOURCES box.cpp seal.cpp)
#
# PUBLIC are the headers that a C++ user may include: they are installed, and may include
# only public headers themselves (tests/arrows/check_includes.py). All other headers are
# internal. LIBS are foreign libraries that its headers show, PRIVATE_LIBS those that they
# do not. ALONE are sources that cannot be compiled in one unit with others (most presets do
# that with a part's sources, to save time): they define private names that other sources
# define, too. TESTING are sources that only tests use: they become a library beside the part
# that the tests of this part and of all parts above it are linked with.
# Every *_test.cpp of the folder becomes part of one test program, every *_fuzz.cpp a fuzz
# program of its own (in the fuzz preset): they are globbed, so that none on disk can drop out.
set(HOLDFAST_FACE_LAYER 9)  # faces (command line, Python): not part of the C++ library

function(holdfast_part)
  cmake_parse_arguments(PART "" "NAME;LAYER"
                        "DEPS;PUBLIC;SOURCES;LIBS;PRIVATE_LIBS;ALONE;TESTING" ${ARGN})
  if(PART_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "${PART_NAME}: unknown arguments ${PART_UNPARSED_ARGUMENTS}")
  endif()

  set(target holdfast_${PART_NAME})
  add_library(${target} STATIC ${PART_SOURCES})
  set_source_files_properties(${PART_ALONE} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  set_target_properties(${target} PROPERTIES HOLDFAST_LAYER ${PART_LAYER}
                        POSITION_INDEPENDENT_CODE ON EXPORT_NAME ${PART_NAME})
  target_include_directories(${target} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>)
  target_compile_features(${target} PUBLIC cxx_std_20)
  target_link_libraries(${target} PUBLIC ${PART_LIBS}
                        PRIVATE ${PART_PRIVATE_LIBS} $<BUILD_INTERFACE:holdfast_warnings>)
  target_sources(${target} PUBLIC FILE_SET HEADERS BASE_DIRS ${PROJECT_SOURCE_DIR}
                                           FILES ${PART_PUBLIC})
  foreach(header IN LISTS PART_PUBLIC)
    set_property(GLOBAL APPEND PROPERTY HOLDFAST_PUBLIC holdfast/${PART_NAME}/${header})
  endforeach()

  holdfast_declare_arrows(${PART_NAME} ${PART_LAYER} ${PART_DEPS})
  foreach(dep IN LISTS PART_DEPS)
    target_link_libraries(${target} PUBLIC holdfast_${dep})
  endforeach()

  set_property(GLOBAL APPEND PROPERTY HOLDFAST_PARTS ${PART_NAME})
  if(PART_TESTING)
    holdfast_part_testing(${target} ${PART_TESTING})
  endif()
  holdfast_part_tests(${PART_NAME} ${target})
  holdfast_part_fuzzers(${PART_NAME} ${target})
endfunction()

# The program of a face: holdfast_program(NAME holdfast PART cli SOURCES main.cpp) makes the
# target holdfast_program and bin/holdfast in the build folder. It is installed, and goes
# into the wheel as a script.
function(holdfast_program)
  cmake_parse_arguments(PROGRAM "" "NAME;PART" "SOURCES" ${ARGN})
  add_executable(holdfast_program ${PROGRAM_SOURCES})
  target_link_libraries(holdfast_program PRIVATE holdfast_${PROGRAM_PART} holdfast_warnings)
  set_target_properties(holdfast_program PROPERTIES OUTPUT_NAME ${PROGRAM_NAME}
                        RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
endfunction()

# Checks every arrow and notes it for the test that holds the #includes against it.
function(holdfast_declare_arrows name layer)
  foreach(dep IN LISTS ARGN)
    holdfast_check_arrow(${name} ${layer} ${dep})
  endforeach()
  string(REPLACE ";" " " deps "${ARGN}")
  set_property(GLOBAL APPEND_STRING PROPERTY HOLDFAST_ARROWS "${name} ${layer} ${deps}\n")
endfunction()

# Fails unless `dep` exists already and lies strictly below.
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

function(holdfast_part_tests name target)
  if(NOT HOLDFAST_TESTS)
    return()
  endif()
  file(GLOB tests CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*_test.cpp)
  if(NOT tests)
    return()
  endif()
  add_executable(${name}_test ${tests})
  get_property(testing GLOBAL PROPERTY HOLDFAST_TESTING)
  target_link_libraries(${name}_test PRIVATE ${testing} ${target} holdfast_warnings
                                             holdfast_testing)
  # Test code is large and most of it runs once, so optimising it costs more time than it
  # saves. The parts under test keep their optimisation.
  if(NOT CMAKE_BUILD_TYPE STREQUAL "Release")
    target_compile_options(${name}_test PRIVATE -O0)
  endif()
  # With the address sanitizer only the parts are instrumented, again to save time.
  if(HOLDFAST_SANITIZE MATCHES "address")
    target_compile_options(${name}_test PRIVATE -fno-sanitize=all)
  endif()
  # GoogleTest's macros expand to what clang-tidy dislikes; the compiler still warns.
  set_target_properties(${name}_test PROPERTIES CXX_CLANG_TIDY "")
  holdfast_leak_test(${name} environment)
  gtest_discover_tests(${name}_test TEST_PREFIX "${name}." DISCOVERY_TIMEOUT 120
                       PROPERTIES TIMEOUT 600 ${environment})
endfunction()

# GCC 12's leak check walks the whole address space at exit: nothing on x86-64, seconds a
# process on aarch64. There it is done once a program, under the label "leaks", and left
# out of the single tests.
function(holdfast_leak_test name environment)
  if(HOLDFAST_SANITIZE MATCHES "address" AND CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64")
    set(${environment} ENVIRONMENT ASAN_OPTIONS=detect_leaks=0 PARENT_SCOPE)
    add_test(NAME ${name}.NothingLeaks COMMAND ${name}_test)
    set_tests_properties(${name}.NothingLeaks PROPERTIES LABELS leaks TIMEOUT 1800)
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

# After the last part: the umbrella target and header, and the lists that scripts read.
function(holdfast_finish)
  get_property(arrows GLOBAL PROPERTY HOLDFAST_ARROWS)
  get_property(fuzzers GLOBAL PROPERTY HOLDFAST_FUZZERS)
  file(WRITE ${PROJECT_BINARY_DIR}/arrows.txt "${arrows}")
  file(WRITE ${PROJECT_BINARY_DIR}/fuzzers.txt "${fuzzers}")
  get_property(public GLOBAL PROPERTY HOLDFAST_PUBLIC)
  list(JOIN public "\n" public)
  file(WRITE ${PROJECT_BINARY_DIR}/public_headers.txt "${public}\n")
  holdfast_library_parts(parts)
  list(TRANSFORM parts PREPEND holdfast_)
  add_library(holdfast_all INTERFACE)
  add_library(holdfast::holdfast ALIAS holdfast_all)
  set_target_properties(holdfast_all PROPERTIES EXPORT_NAME holdfast)
  target_link_libraries(holdfast_all INTERFACE ${parts})
  holdfast_umbrella_header()
endfunction()

# The parts that a C++ user gets: all but the faces.
function(holdfast_library_parts out)
  get_property(parts GLOBAL PROPERTY HOLDFAST_PARTS)
  set(below "")
  foreach(part IN LISTS parts)
    get_target_property(layer holdfast_${part} HOLDFAST_LAYER)
    if(layer LESS HOLDFAST_FACE_LAYER)
      list(APPEND below ${part})
    endif()
  endforeach()
  set(${out} ${below} PARENT_SCOPE)
endfunction()

# holdfast/holdfast.h is generated: written by hand it would forget a header.
function(holdfast_umbrella_header)
  string(CONCAT text
         "// All public headers of Holdfast's C++ library, part by part from the bottom up.\n"
         "#pragma once\n\n")
  get_property(public GLOBAL PROPERTY HOLDFAST_PUBLIC)
  foreach(header IN LISTS public)
    string(APPEND text "#include \"${header}\"\n")
  endforeach()
  set(folder ${PROJECT_BINARY_DIR}/include)
  file(CONFIGURE OUTPUT ${folder}/holdfast/holdfast.h CONTENT "${text}" @ONLY)
  target_sources(holdfast_all INTERFACE FILE_SET HEADERS BASE_DIRS ${folder}
                                        FILES ${folder}/holdfast/holdfast.h)
endfunction()
