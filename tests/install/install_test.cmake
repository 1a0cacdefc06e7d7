# Arguments: BUILD_FOLDER (what to install), WORK_FOLDER (emptied first), CONSUMER
# (its sources), CONFIG, CXX, CXX_FLAGS and HAS_SERVER (as the build has them).
function(run)
  execute_process(COMMAND ${ARGV} COMMAND_ECHO STDOUT RESULT_VARIABLE result)
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "failed (${result}): ${ARGV}")
  endif()
endfunction()

set(prefix ${WORK_FOLDER}/prefix)
set(build ${WORK_FOLDER}/build)
file(REMOVE_RECURSE ${WORK_FOLDER})
run(${CMAKE_COMMAND} --install ${BUILD_FOLDER} --config ${CONFIG} --prefix ${prefix})
if(HAS_SERVER)
  file(STRINGS ${prefix}/lib/systemd/system/blockmgrd.service start REGEX "^ExecStart=")
  string(REGEX REPLACE "^ExecStart=\"([^\"]+).*" "\\1" daemon "${start}")
  run(${daemon} --help)
  if(NOT EXISTS ${prefix}/share/blockmgr/proto/blockmgr/v1/engine.proto)
    message(FATAL_ERROR "no messages in ${prefix}/share/blockmgr")
  endif()
endif()
if(NOT EXISTS ${prefix}/share/blockmgr/region_layout_vectors.json)
  message(FATAL_ERROR "no vectors of region layouts in ${prefix}/share/blockmgr")
endif()
run(${CMAKE_COMMAND} -S ${CONSUMER} -B ${build} -G Ninja
  -DCMAKE_BUILD_TYPE=${CONFIG} -DCMAKE_PREFIX_PATH=${prefix}
  -DCMAKE_CXX_COMPILER=${CXX} -DCMAKE_CXX_FLAGS=${CXX_FLAGS})
run(${CMAKE_COMMAND} --build ${build})
run(${build}/consumer)
