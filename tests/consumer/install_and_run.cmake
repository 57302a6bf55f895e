# Installs the build HOLDFAST to a new prefix, checks which headers are there, then builds the
# program `consumer` with this prefix alone, and runs it.
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

file(GLOB_RECURSE headers RELATIVE ${prefix}/include ${prefix}/include/*)
list(LENGTH headers count)
if(count LESS 2)
  message(FATAL_ERROR "${prefix}/include: ${count} headers; expected 2 or more")
endif()
file(READ ${prefix}/include/holdfast/holdfast.h umbrella)
foreach(header IN LISTS headers)
  if(NOT header MATCHES "^holdfast/.*\\.h$" OR header MATCHES "[/_](test|testing|internal)\\.h$")
    message(FATAL_ERROR "${header}: is installed; expected public headers only")
  endif()
  string(FIND "${umbrella}" "#include \"${header}\"\n" at)
  if(at EQUAL -1 AND NOT header STREQUAL "holdfast/holdfast.h")
    message(FATAL_ERROR "holdfast/holdfast.h: does not include ${header}; expected all headers")
  endif()
endforeach()

run(${CMAKE_COMMAND} -S ${SOURCE} -B ${BINARY}/build -G ${GENERATOR}
    -D CMAKE_PREFIX_PATH=${prefix} -D CMAKE_CXX_COMPILER=${COMPILER}
    -D CMAKE_CXX_COMPILER_LAUNCHER=${LAUNCHER} "-DCMAKE_CXX_FLAGS=${FLAGS}")
run(${CMAKE_COMMAND} --build ${BINARY}/build)
run(${BINARY}/build/consumer)
if(NOT output STREQUAL "[2:4, 3:5] at step 400\n")
  message(FATAL_ERROR "consumer: printed \"${output}\"; expected \"[2:4, 3:5] at step 400\"")
endif()
