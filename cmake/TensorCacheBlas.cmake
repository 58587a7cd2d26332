# A CBLAS for the run half: target TensorCache::blas. OpenBLAS first, then whatever FindBLAS finds.
# Installed with the package, so that a consumer of the static library finds its own BLAS the same way.
if(TARGET TensorCache::blas)
  return()
endif()

find_path(TENSORCACHE_CBLAS_INCLUDE_DIR cblas.h
          PATH_SUFFIXES ${CMAKE_LIBRARY_ARCHITECTURE} openblas openblas-pthread
                        ${CMAKE_LIBRARY_ARCHITECTURE}/openblas-pthread)
find_library(TENSORCACHE_BLAS_LIBRARY NAMES openblas)
if(NOT TENSORCACHE_BLAS_LIBRARY)
  find_package(BLAS)
  set(TENSORCACHE_BLAS_LIBRARY ${BLAS_LIBRARIES})
endif()
if(NOT TENSORCACHE_CBLAS_INCLUDE_DIR OR NOT TENSORCACHE_BLAS_LIBRARY)
  message(FATAL_ERROR "TensorCache needs a BLAS with cblas.h; install libopenblas-dev, or set "
                      "TENSORCACHE_CBLAS_INCLUDE_DIR and TENSORCACHE_BLAS_LIBRARY")
endif()

add_library(TensorCache::blas INTERFACE IMPORTED GLOBAL)
target_include_directories(TensorCache::blas INTERFACE ${TENSORCACHE_CBLAS_INCLUDE_DIR})
target_link_libraries(TensorCache::blas INTERFACE ${TENSORCACHE_BLAS_LIBRARY})
