# cmake -DBUILD=<build tree> -DSOURCE=<this folder> -DWORK=<scratch> -P run.cmake: installs the build into a scratch
# prefix, looks at what is there, then configures, builds and runs the consumer against it.
function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(result)
    list(JOIN ARGN " " command)
    message(FATAL_ERROR "failed: ${command}\n${output}")
  endif()
endfunction()

file(REMOVE_RECURSE ${WORK})
run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${WORK}/prefix)

# What is installed is what others can come to depend on: a header more or less is meant, or a mistake.
set(headers
    cache.h choices.h config.h executor.h kernels/matmul.h kernels/memory_scan.h kernels/norm.h kernels/read_norm.h
    kernels/rope.h kernels/rows.h kernels/short_conv.h kernels/window_attention.h model.h sampling.h session.h status.h
    tensor_cache_config.h tokenizer.h version.h)
list(TRANSFORM headers PREPEND tensorcache/)
file(GLOB_RECURSE installed LIST_DIRECTORIES false RELATIVE ${WORK}/prefix/include ${WORK}/prefix/include/*)
list(SORT installed)
if(NOT installed STREQUAL headers)
  message(FATAL_ERROR "installed headers:\n  ${installed}\nexpected (tests/package/run.cmake):\n  ${headers}")
endif()

# The references are for our tests.
find_program(nm nm)
file(GLOB_RECURSE archive ${WORK}/prefix/*/libtensorcache.a)
if(nm)
  execute_process(COMMAND ${nm} -C ${archive} OUTPUT_VARIABLE symbols ERROR_QUIET COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX MATCH "tensorcache::[A-Za-z]*Reference[(<]" reference "${symbols}")
  if(reference)
    message(FATAL_ERROR "the installed archive has ${reference}")
  endif()
endif()

set(flags "")
if(SANITIZE)
  set(flags -DCMAKE_CXX_FLAGS=-fsanitize=${SANITIZE})
endif()
run(${CMAKE_COMMAND} -S ${SOURCE} -B ${WORK}/build -G Ninja -DCMAKE_PREFIX_PATH=${WORK}/prefix
    -DTENSORCACHE_PREFIX=${WORK}/prefix -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_COMPILER=${COMPILER} ${flags})
run(${CMAKE_COMMAND} --build ${WORK}/build)
run(${WORK}/build/consumer)
if(EXISTS ${WORK}/prefix/bin/tensorcache)
  run(${WORK}/prefix/bin/tensorcache --version)
endif()
if(EXISTS ${WORK}/prefix/bin/tensorcache-train)
  run(${WORK}/prefix/bin/tensorcache train --help)
endif()
file(REMOVE_RECURSE ${WORK})
