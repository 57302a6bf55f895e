# liburing has no CMake package of its own. Defines the target Liburing::Liburing.
find_path(Liburing_INCLUDE_DIR liburing.h)
find_library(Liburing_LIBRARY uring)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Liburing
                                  REQUIRED_VARS Liburing_LIBRARY Liburing_INCLUDE_DIR)
mark_as_advanced(Liburing_INCLUDE_DIR Liburing_LIBRARY)

if(Liburing_FOUND AND NOT TARGET Liburing::Liburing)
  add_library(Liburing::Liburing UNKNOWN IMPORTED)
  set_target_properties(Liburing::Liburing PROPERTIES
                        IMPORTED_LOCATION ${Liburing_LIBRARY}
                        INTERFACE_INCLUDE_DIRECTORIES ${Liburing_INCLUDE_DIR})
endif()
