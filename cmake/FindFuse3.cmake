# libfuse3 has no CMake package of its own. Defines the target Fuse3::Fuse3.
find_path(Fuse3_INCLUDE_DIR fuse.h PATH_SUFFIXES fuse3)
find_library(Fuse3_LIBRARY fuse3)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Fuse3 REQUIRED_VARS Fuse3_LIBRARY Fuse3_INCLUDE_DIR)
mark_as_advanced(Fuse3_INCLUDE_DIR Fuse3_LIBRARY)

if(Fuse3_FOUND AND NOT TARGET Fuse3::Fuse3)
  add_library(Fuse3::Fuse3 UNKNOWN IMPORTED)
  set_target_properties(Fuse3::Fuse3 PROPERTIES
                        IMPORTED_LOCATION ${Fuse3_LIBRARY}
                        INTERFACE_INCLUDE_DIRECTORIES ${Fuse3_INCLUDE_DIR})
endif()
