# Installs BUILD into an empty prefix under WORK, then configures, builds and runs PROJECT against
# that prefix alone.  It starts from scratch each time, so that a file that is no longer installed
# is missed.

function(run)
  execute_process(COMMAND ${ARGN} COMMAND_ECHO STDOUT COMMAND_ERROR_IS_FATAL ANY)
endfunction()

set(prefix ${WORK}/prefix)
file(REMOVE_RECURSE ${prefix} ${WORK}/build ${WORK}/empty)
file(MAKE_DIRECTORY ${WORK}/empty)

run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${prefix})
run(${CMAKE_COMMAND} -S ${PROJECT} -B ${WORK}/build -G ${GENERATOR} -DCMAKE_MAKE_PROGRAM=${MAKE_PROGRAM}
    -DCMAKE_CXX_COMPILER=${COMPILER} -DCMAKE_CXX_COMPILER_LAUNCHER=${LAUNCHER} -DCMAKE_CXX_FLAGS=${FLAGS}
    -DCMAKE_BUILD_TYPE=${BUILD_TYPE} -DCMAKE_PREFIX_PATH=${prefix})
run(${CMAKE_COMMAND} --build ${WORK}/build)
run(${WORK}/build/consumer ${WORK}/empty)

# The programs run where they were installed, and the wire contract is installed for other
# languages.
run(${prefix}/bin/larderd --version)
run(${prefix}/bin/larderctl --help)
foreach(page man/man1/larderctl.1 man/man8/larderd.8 bash-completion/completions/larderctl
             zsh/vendor-completions/_larderctl fish/vendor_completions.d/larderctl.fish)
  if(NOT EXISTS ${prefix}/share/${page})
    message(FATAL_ERROR "share/${page} is not installed")
  endif()
endforeach()
foreach(file cache engine admin types)
  if(NOT EXISTS ${prefix}/share/larder/proto/larder/v1/${file}.proto)
    message(FATAL_ERROR "share/larder/proto/larder/v1/${file}.proto is not installed")
  endif()
endforeach()
