# Installs `files` of the folder `root` below the folder `destination`, with the
# includes that a user of the installation writes:
#
#   "scheduler/scheduler.h"          <blockmgr/scheduler/scheduler.h>
#   "blockmgr/base/ids.h"            <blockmgr/base/ids.h>
#   "proto/blockmgr/v1/engine.pb.h"  <blockmgr/v1/engine.pb.h>
#
# The paths of the files change like those of their includes. What was written
# is in `scratch`: a file whose text is still the same is not touched.
cmake_path(ABSOLUTE_PATH destination BASE_DIRECTORY "${CMAKE_INSTALL_PREFIX}")
foreach(file ${files})
  file(READ ${root}/${file} text)
  string(REGEX REPLACE "#include \"((proto/)?blockmgr/)?([^\"]+)\""
    "#include <blockmgr/\\3>" text "${text}")
  string(REGEX REPLACE "^blockmgr/" "" path ${file})
  set(before)
  if(EXISTS ${scratch}/${path})
    file(READ ${scratch}/${path} before)
  endif()
  if(NOT before STREQUAL text)
    file(WRITE ${scratch}/${path} "${text}")
  endif()
  cmake_path(GET path PARENT_PATH folder)
  file(INSTALL ${scratch}/${path} DESTINATION ${destination}/${folder})
endforeach()
