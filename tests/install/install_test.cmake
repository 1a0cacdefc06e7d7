# Arguments: BUILD_FOLDER (what to install), WORK_FOLDER (emptied first), CONSUMER
# and COMPONENT (sources of projects), CONFIG, CXX, CXX_FLAGS, HAS_SERVER and
# HAS_CUDA (as the build has them), PYTHON (that has gRPC, or empty).
cmake_policy(VERSION 3.25)

function(run)
  execute_process(COMMAND ${ARGV} COMMAND_ECHO STDOUT RESULT_VARIABLE result)
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "failed (${result}): ${ARGV}")
  endif()
endfunction()

set(prefix ${WORK_FOLDER}/prefix)
set(examples ${prefix}/share/doc/blockmgr/examples)
set(build ${WORK_FOLDER}/build)
file(REMOVE_RECURSE ${WORK_FOLDER})
run(${CMAKE_COMMAND} --install ${BUILD_FOLDER} --config ${CONFIG} --strip
  --prefix ${prefix})
foreach(file README.md docs/engine.md examples/embed.cc)
  if(NOT EXISTS ${prefix}/share/doc/blockmgr/${file})
    message(FATAL_ERROR "no ${file} in ${prefix}/share/doc/blockmgr")
  endif()
endforeach()
if(EXISTS ${prefix}/include/blockmgr/scheduler/scheduler_impl.h)
  message(FATAL_ERROR "an internal header is installed")
endif()


# Headers include each other, the language's and those of dependencies.
file(GLOB_RECURSE headers RELATIVE ${prefix}/include ${prefix}/include/*)
foreach(header ${headers})
  if(NOT header MATCHES "^blockmgr/.*[.]h$")
    message(FATAL_ERROR "${header} is outside include/blockmgr")
  endif()
  file(STRINGS ${prefix}/include/${header} includes REGEX "^ *# *include")
  foreach(include ${includes})
    string(REGEX REPLACE "^ *# *include <([^>]+)>.*" "\\1" included "${include}")
    if(NOT EXISTS ${prefix}/include/${included} AND NOT included MATCHES
        "^(absl|google/protobuf|grpc|grpcpp)/|^cuda_[a-z0-9_]+[.]h$|^[a-z_0-9]+$")
      message(FATAL_ERROR "${header}: ${include}")
    endif()
  endforeach()
endforeach()

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
if(PYTHON)
  set(ENV{PYTHONPATH} ${prefix}/share/blockmgr/python)
  foreach(example engine frontend router)
    run(${PYTHON} -B ${examples}/python/${example}.py --help)
  endforeach()
endif()
run(${CMAKE_COMMAND} -S ${CONSUMER} -B ${build} -G Ninja -DEXAMPLES=${examples}
  -DCMAKE_BUILD_TYPE=${CONFIG} -DCMAKE_PREFIX_PATH=${prefix}
  -DCMAKE_CXX_COMPILER=${CXX} -DCMAKE_CXX_FLAGS=${CXX_FLAGS})
run(${CMAKE_COMMAND} --build ${build})
run(${build}/consumer)
run(${build}/embed)

# consume(COMPONENT PACKAGE ..): where none but these packages can be found.
function(consume component)
  set(build ${WORK_FOLDER}/${component})
  set(disabled)
  foreach(package absl Boost hwy Protobuf gRPC CUDAToolkit CLI11 spdlog nlohmann_json)
    if(NOT package IN_LIST ARGN)
      list(APPEND disabled -DCMAKE_DISABLE_FIND_PACKAGE_${package}=ON)
    endif()
  endforeach()
  run(${CMAKE_COMMAND} -S ${COMPONENT} -B ${build} -G Ninja ${disabled}
    -DCOMPONENT=${component} -DCMAKE_BUILD_TYPE=${CONFIG}
    -DCMAKE_PREFIX_PATH=${prefix}
    -DCMAKE_CXX_COMPILER=${CXX} -DCMAKE_CXX_FLAGS=${CXX_FLAGS})
  run(${CMAKE_COMMAND} --build ${build})
  run(${build}/component)
endfunction()
consume(core absl)
consume(scheduler absl)
consume(engine absl)
consume(kernels absl hwy)
if(HAS_CUDA)
  consume(cuda absl hwy CUDAToolkit)
endif()
if(HAS_SERVER)
  consume(proto absl Protobuf gRPC)
endif()
