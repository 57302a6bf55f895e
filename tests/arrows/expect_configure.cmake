# Configures CASE: it must succeed if WANT is empty, else fail with that sentence.
file(REMOVE_RECURSE ${BINARY})
execute_process(COMMAND ${CMAKE_COMMAND} -S ${SOURCE} -B ${BINARY} -G ${GENERATOR}
                        -D CASE=${CASE} -D CMAKE_CXX_COMPILER=${COMPILER}
                RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
string(REGEX REPLACE "[ \n]+" " " flat "${output}")  # CMake wraps long messages
if(WANT STREQUAL "")
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "${CASE}: want success, got ${status}\n${output}")
  endif()
elseif(status EQUAL 0)
  message(FATAL_ERROR "${CASE}: configured, want \"${WANT}\"")
else()
  string(FIND "${flat}" "${WANT}" at)
  if(at EQUAL -1)
    message(FATAL_ERROR "${CASE}: failed without \"${WANT}\"\n${output}")
  endif()
endif()
