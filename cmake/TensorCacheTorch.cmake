# Target tc_torch: LibTorch and its flags. CMAKE_PREFIX_PATH, Torch_DIR and Torch_ROOT go before what scripts/setup.sh
# unpacked.
file(GLOB tc_torch_homes ${CMAKE_CURRENT_LIST_DIR}/../build/deps/torch-*/torch)
find_package(Torch QUIET HINTS ${tc_torch_homes})
if(NOT TARGET torch)
  message(FATAL_ERROR "LibTorch was not found: run scripts/setup.sh, or point CMAKE_PREFIX_PATH at a LibTorch, or "
                      "configure with -DTENSORCACHE_TRAIN=OFF for the run half alone")
endif()

# Link it before all other libraries: libtorch_cpu and OpenBLAS both export sgemm_ and LAPACK, and torch must bind to
# its own. The run half calls cblas_*, which only OpenBLAS has.
add_library(tc_torch INTERFACE)
separate_arguments(tc_torch_flags UNIX_COMMAND "${TORCH_CXX_FLAGS}")
target_compile_options(tc_torch INTERFACE ${tc_torch_flags})
target_link_libraries(tc_torch INTERFACE ${TORCH_LIBRARIES})
