# Configures CASE. If EXPECTED is empty, that must succeed; otherwise it must fail with the message
# EXPECTED.
file(REMOVE_RECURSE ${BINARY})
execute_process(COMMAND ${CMAKE_COMMAND} -S ${SOURCE} -B ${BINARY} -G ${GENERATOR}
                        -D CASE=${CASE} -D CMAKE_CXX_COMPILER=${COMPILER}
                RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
string(REGEX REPLACE "[ \n]+" " " flat "${output}")  # CMake wraps long messages
if(EXPECTED STREQUAL "")
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "${CASE}: exit status ${status}; expected 0\n${output}")
  endif()
elseif(status EQUAL 0)
  message(FATAL_ERROR "${CASE}: configured; expected the error \"${EXPECTED}\"")
else()
  string(FIND "${flat}" "${EXPECTED}" at)
  if(at EQUAL -1)
    message(FATAL_ERROR "${CASE}: failed; expected the error \"${EXPECTED}\"\n${output}")
  endif()
endif()
