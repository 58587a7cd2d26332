# Flags and helper functions that every folder uses.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()

# A compiler cache, if there is one: a clean build of unchanged files takes seconds.
find_program(TENSORCACHE_CCACHE ccache)
if(TENSORCACHE_CCACHE AND PROJECT_IS_TOP_LEVEL AND NOT DEFINED CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${TENSORCACHE_CCACHE})
endif()

# What every object of the project is compiled with.
#   -ffp-contract=off: a multiply and an add fuse only where the source says so. GCC would otherwise fuse them across
#   intrinsics, and kernels such as the wedge write are exact only with the roundings that are written down.
add_library(tc_flags INTERFACE)
target_compile_options(tc_flags INTERFACE -Wall -Wextra -Wno-psabi -Wno-missing-field-initializers -ffp-contract=off)
# g++ 12 sees overlapping copies in std::string's operator+ where there are none.
target_compile_options(tc_flags INTERFACE $<$<AND:$<CXX_COMPILER_ID:GNU>,$<VERSION_LESS:$<CXX_COMPILER_VERSION>,13>>:-Wno-restrict>)
option(TENSORCACHE_WERROR "Warnings are errors: for those who develop it, with the compilers they have" OFF)
if(TENSORCACHE_WERROR)
  target_compile_options(tc_flags INTERFACE -Werror)
endif()
target_include_directories(tc_flags INTERFACE ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src
                                              ${PROJECT_SOURCE_DIR})
# SSSE3 adds nothing over SSE4 on machines still in use; the portable fallback (SCALAR with g++, EMU128 with clang) stays.
target_compile_definitions(tc_flags INTERFACE HWY_DISABLED_TARGETS=HWY_SSSE3)

set(TENSORCACHE_SANITIZE "" CACHE STRING "Sanitizers, as in -fsanitize=...; empty for none")
if(TENSORCACHE_SANITIZE)
  target_compile_options(tc_flags INTERFACE -fsanitize=${TENSORCACHE_SANITIZE} -fno-omit-frame-pointer
                                            -fno-sanitize-recover=all)
  target_link_options(tc_flags INTERFACE -fsanitize=${TENSORCACHE_SANITIZE})
  if(TENSORCACHE_SANITIZE MATCHES thread)
    # Races do not depend on the instruction set, and instrumented kernels take minutes to compile for each of them.
    target_compile_definitions(tc_flags INTERFACE HWY_COMPILE_ONLY_STATIC)
  endif()
endif()

# Half of what a build takes is headers and optimising code that runs for milliseconds. Below, headers that many files
# include are compiled once (the sources name them all the same: -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON builds without),
# and tests are optimised a little.
set(tc_little_optimised $<$<CONFIG:Release>:-O1>)

# tc_test(NAME SOURCES a_test.cc [LIBS ...] [LIBS_FIRST ...] [LABEL unit|kernel|e2e|slow] [TIMEOUT seconds]): one
# GoogleTest executable, one CTest entry. LIBS_FIRST stand before all others on the link line.
function(tc_test name)
  cmake_parse_arguments(ARG "" "LABEL;TIMEOUT" "SOURCES;LIBS;LIBS_FIRST" ${ARGN})
  if(NOT TENSORCACHE_TESTS)
    return()
  endif()
  if(NOT ARG_LABEL)
    set(ARG_LABEL unit)
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 600)
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ${ARG_LIBS_FIRST} tc_flags tc_testing tensorcache ${ARG_LIBS} GTest::gtest_main)
  if(tc_torch IN_LIST ARG_LIBS_FIRST)
    tc_reuse_torch_headers(${name})
  else()
    target_compile_options(${name} PRIVATE ${tc_little_optimised})
    target_precompile_headers(${name} REUSE_FROM tc_test_headers)
  endif()
  add_test(NAME ${name} COMMAND ${name})
  # A program whose tests all lack something, such as real data, has not passed: CTest lists it as skipped.
  set_tests_properties(${name} PROPERTIES LABELS ${ARG_LABEL} TIMEOUT ${ARG_TIMEOUT} SKIP_REGULAR_EXPRESSION
                                          "PASSED  . 0 tests.[\r\n]+.  SKIPPED")
endfunction()
