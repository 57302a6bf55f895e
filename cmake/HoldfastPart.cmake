# One folder is one part is one target. A part names its layer and what it uses; using
# anything on its own layer or above is refused here, at configure time.
#
#   holdfast_part(NAME state LAYER 1 DEPS base SOURCES box.cpp plan.cpp)
#
# Every *_test.cpp of the folder becomes part of one test program, every *_fuzz.cpp a fuzz
# program of its own (in the fuzz preset): they are globbed, so that none on disk can drop out.
function(holdfast_part)
  cmake_parse_arguments(PART "" "NAME;LAYER" "DEPS;SOURCES;LIBS;PRIVATE_LIBS" ${ARGN})
  if(PART_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "${PART_NAME}: unknown arguments ${PART_UNPARSED_ARGUMENTS}")
  endif()

  set(target holdfast_${PART_NAME})
  add_library(${target} STATIC ${PART_SOURCES})
  set_target_properties(${target} PROPERTIES HOLDFAST_LAYER ${PART_LAYER}
                        POSITION_INDEPENDENT_CODE ON EXPORT_NAME ${PART_NAME})
  target_include_directories(${target} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>
                                              $<INSTALL_INTERFACE:include>)
  target_compile_features(${target} PUBLIC cxx_std_20)
  target_link_libraries(${target} PUBLIC ${PART_LIBS}
                        PRIVATE ${PART_PRIVATE_LIBS} $<BUILD_INTERFACE:holdfast_warnings>)

  foreach(dep IN LISTS PART_DEPS)
    holdfast_check_arrow(${PART_NAME} ${PART_LAYER} ${dep})
    target_link_libraries(${target} PUBLIC holdfast_${dep})
  endforeach()

  set_property(GLOBAL APPEND PROPERTY HOLDFAST_PARTS ${PART_NAME})
  set_property(GLOBAL APPEND_STRING PROPERTY HOLDFAST_ARROWS
               "${PART_NAME} ${PART_LAYER} ${PART_DEPS}\n")
  holdfast_part_tests(${PART_NAME} ${target})
  holdfast_part_fuzzers(${PART_NAME} ${target})
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

function(holdfast_part_tests name target)
  if(NOT HOLDFAST_TESTS)
    return()
  endif()
  file(GLOB tests CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*_test.cpp)
  if(NOT tests)
    return()
  endif()
  add_executable(${name}_test ${tests})
  target_link_libraries(${name}_test PRIVATE ${target} holdfast_warnings holdfast_testing)
  gtest_discover_tests(${name}_test TEST_PREFIX "${name}." DISCOVERY_TIMEOUT 120
                       PROPERTIES TIMEOUT 600)
endfunction()

function(holdfast_part_fuzzers name target)
  if(NOT HOLDFAST_FUZZ)
    return()
  endif()
  file(GLOB fuzzers CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*_fuzz.cpp)
  foreach(source IN LISTS fuzzers)
    get_filename_component(program ${source} NAME_WE)
    add_executable(${program} ${source})
    target_link_libraries(${program} PRIVATE ${target} holdfast_warnings)
    target_link_options(${program} PRIVATE -fsanitize=fuzzer)
    set_property(GLOBAL APPEND PROPERTY HOLDFAST_FUZZERS ${program})
  endforeach()
endfunction()
