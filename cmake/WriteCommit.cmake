# cmake -DSOURCE=<tree> -DOUTPUT=<header> -P WriteCommit.cmake: the commit of the tree as a header, left untouched when
# it already says so. Runs at every build; a rebuild follows only when the commit changed.
execute_process(COMMAND git describe --always --dirty --abbrev=10 --exclude=* WORKING_DIRECTORY ${SOURCE}
                OUTPUT_VARIABLE commit RESULT_VARIABLE failed ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
if(failed OR NOT commit)
  set(commit unknown)
endif()
set(text "#pragma once\n\n#define TENSORCACHE_COMMIT \"${commit}\"\n")
set(old "")
if(EXISTS ${OUTPUT})
  file(READ ${OUTPUT} old)
endif()
if(NOT text STREQUAL old)
  file(WRITE ${OUTPUT} "${text}")
endif()
