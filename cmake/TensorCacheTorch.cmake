# Target tc_torch: LibTorch and its flags. CMAKE_PREFIX_PATH, Torch_DIR and Torch_ROOT go before what scripts/setup.sh
# unpacked.
file(GLOB tc_torch_homes ${CMAKE_CURRENT_LIST_DIR}/../build/deps/torch-*/torch)
find_package(Torch QUIET GLOBAL HINTS ${tc_torch_homes})
if(NOT TARGET torch)
  message(FATAL_ERROR "LibTorch was not found: run scripts/setup.sh, or point CMAKE_PREFIX_PATH at a LibTorch, or "
                      "configure with -DTENSORCACHE_TRAIN=OFF for the run half alone")
endif()

# Link it before all other libraries: libtorch_cpu and OpenBLAS both export sgemm_ and LAPACK, and torch must bind to
# its own. The run half calls cblas_*, which only OpenBLAS has.
add_library(tc_torch INTERFACE)
separate_arguments(tc_torch_flags UNIX_COMMAND "${TORCH_CXX_FLAGS}")
target_compile_options(tc_torch INTERFACE ${tc_torch_flags})
# LibTorch brings the headers of its own fmt, found before the system's, but exports no fmt to link.
target_compile_definitions(tc_torch INTERFACE FMT_HEADER_ONLY=1)
target_link_libraries(tc_torch INTERFACE ${TORCH_LIBRARIES})
# at::parallel_for is inline code that uses threads only where OpenMP is switched on. Its runtime must be the one LibTorch
# brings: two in a process would fight over the cores.
target_compile_options(tc_torch INTERFACE -fopenmp)
find_library(TENSORCACHE_TORCH_GOMP NAMES libgomp.so.1 PATHS ${TORCH_INSTALL_PREFIX}/lib NO_DEFAULT_PATH)
if(TENSORCACHE_TORCH_GOMP)
  target_link_libraries(tc_torch INTERFACE ${TENSORCACHE_TORCH_GOMP})
else()
  target_link_libraries(tc_torch INTERFACE gomp)
endif()

# tc_check_distributed(RESULT): whether this LibTorch has c10d with Gloo, and compiles and links against the
# declarations of Gloo in src/train/gloo_shim. Looked up once per LibTorch; set TENSORCACHE_DISTRIBUTED to overrule it.
function(tc_check_distributed result)
  set(request "${Torch_DIR} ${Torch_VERSION}")
  if(NOT DEFINED TENSORCACHE_DISTRIBUTED OR (DEFINED CACHE{TENSORCACHE_DISTRIBUTED_CHECKED}
                                             AND NOT "${TENSORCACHE_DISTRIBUTED_CHECKED}" STREQUAL "${request}"))
    message(STATUS "Looking for c10d with Gloo in LibTorch")
    try_compile(found
      PROJECT TorchProbe
      SOURCE_DIR ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/torch_probe
      TARGET distributed_probe
      CMAKE_FLAGS -DTorch_DIR=${Torch_DIR} -DCMAKE_CXX_COMPILER=${CMAKE_CXX_COMPILER}
                  -DCMAKE_CXX_COMPILER_LAUNCHER=${CMAKE_CXX_COMPILER_LAUNCHER})
    set(TENSORCACHE_DISTRIBUTED ${found} CACHE BOOL "Training in several processes (needs c10d and Gloo)" FORCE)
    set(TENSORCACHE_DISTRIBUTED_CHECKED "${request}" CACHE INTERNAL "The LibTorch that was looked at")
  endif()
  if(NOT TENSORCACHE_DISTRIBUTED)
    message(WARNING "This LibTorch has no c10d with Gloo: the train half is built without training in several "
                    "processes. Take another LibTorch (scripts/setup.sh fetches one) if you need it.")
  endif()
  set(${result} ${TENSORCACHE_DISTRIBUTED} PARENT_SCOPE)
endfunction()
