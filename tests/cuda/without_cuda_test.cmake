# Configures SOURCE in WORK as on a machine without a CUDA toolkit, builds the device layer and its contract test there, and
# runs the test. The build is kept, so that the next run builds only what has changed.
unset(ENV{GTEST_OUTPUT})  # test results are counted by file, and these tests are counted in the build that has CUDA

function(run)
  execute_process(COMMAND ${ARGN} COMMAND_ECHO STDOUT COMMAND_ERROR_IS_FATAL ANY)
endfunction()

run(${CMAKE_COMMAND} -S ${SOURCE} -B ${WORK} -G ${GENERATOR} -DCMAKE_MAKE_PROGRAM=${MAKE_PROGRAM}
    -DCMAKE_CXX_COMPILER=${COMPILER} -DCMAKE_CXX_FLAGS_RELEASE=-O0
    -DCMAKE_BUILD_TYPE=Release -DLARDER_CUDA=OFF -DLARDER_TESTS=ON -DLARDER_BENCH=OFF -DLARDER_LLAMA=OFF)
run(${CMAKE_COMMAND} --build ${WORK} --target larder_cuda host_device_test)
run(${WORK}/tests/contract/host_device_test --gtest_brief=1)
