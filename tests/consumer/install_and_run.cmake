# Installs the build HOLDFAST to a fresh prefix and looks at what is there: the public
# headers and no others. Then it builds the consumer and an example against nothing but
# that prefix and runs them.
set(prefix ${BINARY}/prefix)
file(REMOVE_RECURSE ${BINARY})

function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE status OUTPUT_VARIABLE output
                  ERROR_VARIABLE output)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "${ARGN}: exit status ${status}; expected 0\n${output}")
  endif()
  set(output "${output}" PARENT_SCOPE)
endfunction()

run(${CMAKE_COMMAND} --install ${HOLDFAST} --prefix ${prefix})

file(GLOB_RECURSE installed RELATIVE ${prefix}/include ${prefix}/include/*)
file(STRINGS ${HOLDFAST}/public_headers.txt public)
list(APPEND public holdfast/holdfast.h)
if(NOT MPI)
  list(FILTER public EXCLUDE REGEX "^holdfast/mpi/")
endif()
list(SORT installed)
list(SORT public)
if(NOT installed STREQUAL public)
  message(FATAL_ERROR "${prefix}/include: has ${installed}; expected ${public}")
endif()

run(${CMAKE_COMMAND} -S ${SOURCE} -B ${BINARY}/build -G ${GENERATOR}
    -D EXAMPLES=${EXAMPLES} -D ALONE=${ALONE}
    -D CMAKE_PREFIX_PATH=${prefix} -D CMAKE_CXX_COMPILER=${COMPILER}
    -D CMAKE_CXX_COMPILER_LAUNCHER=${LAUNCHER} "-DCMAKE_CXX_FLAGS=${FLAGS}")
run(${CMAKE_COMMAND} --build ${BINARY}/build)

function(expect_output text)
  run(${ARGN})
  if(NOT output STREQUAL text)
    message(FATAL_ERROR "${ARGN}: printed \"${output}\"; expected \"${text}\"")
  endif()
endfunction()

expect_output("16 bytes move\n" ${BINARY}/build/consumer)
set(loop ${BINARY}/build/save_loop ${BINARY}/run)
expect_output("there is no step to restore; begins at step 0\nsaved step-00000100\n" ${loop} 1 1)
expect_output("restored step 100\n" ${loop} 0 1)
