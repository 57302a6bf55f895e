# How everything of ours is compiled: warnings, sanitizers, compiler cache.
add_library(holdfast_warnings INTERFACE)
target_compile_options(holdfast_warnings INTERFACE -Wall -Wextra -Wpedantic -Wconversion
                                                   -Wshadow)
if(HOLDFAST_WERROR)
  target_compile_options(holdfast_warnings INTERFACE -Werror)
endif()
# GCC 12 invents these two when it inlines the standard library at -O3 (std::sort of a small
# array is enough); the sanitizers find the true ones.
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
# GCC 12 sees variants of vectors as uninitialized once it optimises a little or a sanitizer
# has had its hands in them; clang and the debug build judge the same code.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  add_compile_options($<$<NOT:$<CONFIG:Release>>:-Wno-maybe-uninitialized>)
endif()

if(PROJECT_IS_TOP_LEVEL AND NOT DEFINED CMAKE_CXX_COMPILER_LAUNCHER)
  find_program(HOLDFAST_CCACHE ccache)
  if(HOLDFAST_CCACHE)
    set(CMAKE_CXX_COMPILER_LAUNCHER ${HOLDFAST_CCACHE})
  endif()
endif()
