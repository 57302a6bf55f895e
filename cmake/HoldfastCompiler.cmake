# How all code of this project is compiled: warnings, sanitizers, compiler cache.
add_library(holdfast_warnings INTERFACE)
target_compile_options(holdfast_warnings INTERFACE -Wall -Wextra -Wpedantic -Wconversion
                                                   -Wshadow)
if(HOLDFAST_WERROR)
  target_compile_options(holdfast_warnings INTERFACE -Werror)
endif()
# When GCC 12 inlines the standard library at -O3, it gives these two warnings without a cause
# (std::sort of a small array is enough). The sanitizers find real errors of these kinds.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  target_compile_options(holdfast_warnings INTERFACE
                         $<$<CONFIG:Release>:-Wno-array-bounds -Wno-stringop-overflow>)
endif()
if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  target_compile_options(holdfast_warnings INTERFACE -Wthread-safety)
endif()

# Every object must agree on sanitizers, so they are set for the whole directory tree.
if(HOLDFAST_SANITIZE)
  set(HOLDFAST_SANITIZE_FLAGS -fsanitize=${HOLDFAST_SANITIZE} -fno-sanitize-recover=all
                              -fno-omit-frame-pointer)
  add_compile_options(${HOLDFAST_SANITIZE_FLAGS})
  add_link_options(${HOLDFAST_SANITIZE_FLAGS})
endif()
# At -O1 or with a sanitizer, GCC 12 warns without a cause that variants of vectors are not
# initialized. Clang and the debug build check the same code.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  add_compile_options($<$<NOT:$<CONFIG:Release>>:-Wno-maybe-uninitialized>)
endif()

# GCC collects garbage after half a gibibyte only. That makes it a tenth faster, and takes a quarter
# of a gibibyte more memory for each process.
if(PROJECT_IS_TOP_LEVEL AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  add_compile_options(--param=ggc-min-heapsize=524288)
endif()

# Failed checks print the path of their source below the project. With the path of the checkout in it,
# ccache could share nothing between checkouts, and a wheel would tell where it was built.
add_compile_options(-fmacro-prefix-map=${PROJECT_SOURCE_DIR}/=)

if(PROJECT_IS_TOP_LEVEL AND NOT DEFINED CMAKE_CXX_COMPILER_LAUNCHER)
  find_program(HOLDFAST_CCACHE ccache)
  if(HOLDFAST_CCACHE)
    set(CMAKE_CXX_COMPILER_LAUNCHER ${HOLDFAST_CCACHE})
  endif()
endif()
