# cmake -DSOURCE_DIR=.. -DVERSION=.. -DTEMPLATE=.. -DOUTPUT=.. -P build_info.cmake
#
# Writes the version and the commit of a tree into a source. The commit ends with
# "-dirty" where files differ from it, and is "unknown" without git or outside of
# a clone. The source is written only if it changes, so that nothing is compiled
# otherwise.
get_filename_component(parent ${SOURCE_DIR} DIRECTORY)
set(ENV{GIT_CEILING_DIRECTORIES} ${parent})
find_program(GIT_PROGRAM git)
set(COMMIT unknown)
if(GIT_PROGRAM)
  execute_process(
    COMMAND ${GIT_PROGRAM} describe --always --dirty --abbrev=40 --exclude=*
    WORKING_DIRECTORY ${SOURCE_DIR}
    RESULT_VARIABLE result OUTPUT_VARIABLE text ERROR_QUIET
    OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(result EQUAL 0)
    set(COMMIT ${text})
  endif()
endif()
configure_file(${TEMPLATE} ${OUTPUT} @ONLY)
