# Installs the public headers, libraries and the CMake package that defines holdfast::holdfast, and
# holdfast::NAME for each optional component.
include(CMakePackageConfigHelpers)

function(holdfast_install)
  get_property(parts GLOBAL PROPERTY HOLDFAST_LIBRARY_PARTS)
  list(TRANSFORM parts PREPEND holdfast_)
  install(TARGETS holdfast_all ${parts} EXPORT holdfastTargets
          ARCHIVE COMPONENT cpp FILE_SET HEADERS COMPONENT cpp)
  set(folder ${CMAKE_INSTALL_LIBDIR}/cmake/holdfast)
  install(EXPORT holdfastTargets NAMESPACE holdfast:: DESTINATION ${folder} COMPONENT cpp)
  get_property(components GLOBAL PROPERTY HOLDFAST_COMPONENTS)
  foreach(component IN LISTS components)
    install(TARGETS holdfast_${component} EXPORT holdfast_${component}
            ARCHIVE COMPONENT cpp FILE_SET HEADERS COMPONENT cpp)
    install(EXPORT holdfast_${component} NAMESPACE holdfast:: DESTINATION ${folder}
            COMPONENT cpp)
  endforeach()
  set(uses_liburing OFF)
  if(TARGET Liburing::Liburing)
    set(uses_liburing ON)
  endif()
  set(uses_zstd OFF)
  if(TARGET Zstd::Zstd)
    set(uses_zstd ON)
  endif()
  set(uses_fuse3 OFF)
  if(TARGET Fuse3::Fuse3)
    set(uses_fuse3 ON)
  endif()
  configure_package_config_file(
    ${PROJECT_SOURCE_DIR}/cmake/holdfastConfig.cmake.in
    ${PROJECT_BINARY_DIR}/holdfastConfig.cmake INSTALL_DESTINATION ${folder})
  write_basic_package_version_file(${PROJECT_BINARY_DIR}/holdfastConfigVersion.cmake
                                   COMPATIBILITY SameMinorVersion)
  install(FILES ${PROJECT_BINARY_DIR}/holdfastConfig.cmake
                ${PROJECT_BINARY_DIR}/holdfastConfigVersion.cmake
                ${PROJECT_SOURCE_DIR}/cmake/FindFuse3.cmake
                ${PROJECT_SOURCE_DIR}/cmake/FindIsaL.cmake
                ${PROJECT_SOURCE_DIR}/cmake/FindLiburing.cmake
                ${PROJECT_SOURCE_DIR}/cmake/FindZstd.cmake
          DESTINATION ${folder} COMPONENT cpp)
  if(TARGET holdfast_program)
    install(TARGETS holdfast_program RUNTIME COMPONENT cli)
  endif()
endfunction()
