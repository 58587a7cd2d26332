# `cmake --install`: the headers, the static library, the program, and the CMake package TensorCache.
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/TensorCache)

install(DIRECTORY include/tensorcache DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")

install(TARGETS tensorcache EXPORT TensorCacheTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(EXPORT TensorCacheTargets NAMESPACE TensorCache:: DESTINATION ${package_dir})
if(TENSORCACHE_PROGRAM)
  install(TARGETS tensorcache_program RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  if(TENSORCACHE_TRAIN)
    install(TARGETS tensorcache_train_program RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  endif()
endif()

configure_package_config_file(cmake/TensorCacheConfig.cmake.in ${CMAKE_BINARY_DIR}/TensorCacheConfig.cmake
                              INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${CMAKE_BINARY_DIR}/TensorCacheConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/TensorCacheConfig.cmake ${CMAKE_BINARY_DIR}/TensorCacheConfigVersion.cmake
              cmake/TensorCacheBlas.cmake cmake/TensorCacheSentencePiece.cmake
        DESTINATION ${package_dir})
