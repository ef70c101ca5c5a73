# How our targets are built: one place for the language level, warnings, sanitizers and ccache.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_SCAN_FOR_MODULES OFF)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()

find_program(CCACHE ccache)
if(CCACHE)
  # Paths below this folder count relative to it, so that a tree in another folder is built from the cache too.
  set(CCACHE_ENV ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=1)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE_ENV} ${CCACHE})
  set(CMAKE_C_COMPILER_LAUNCHER ${CCACHE_ENV} ${CCACHE})
endif()

# __FILE__ has no name of a folder outside the tree, so that what is built does not depend on where the tree lies.
add_compile_options("$<$<COMPILE_LANGUAGE:C,CXX>:-ffile-prefix-map=${PROJECT_SOURCE_DIR}/=>")

# GCC collects its own garbage from 128 MiB on, which takes a sixth of the time of sources that include gRPC; without it
# the largest of them needs 1.1 GiB instead of 0.9.
add_compile_options("$<$<COMPILE_LANG_AND_ID:CXX,GNU>:--param=ggc-min-heapsize=1048576>")

if(LARDER_SANITIZE)
  # GCC's own manual: with a sanitizer -Wmaybe-uninitialized warns of what is not so (12.2: of an absl table in an optional).
  add_compile_options(-fsanitize=${LARDER_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all
                      -Wno-error=maybe-uninitialized)
  add_link_options(-fsanitize=${LARDER_SANITIZE})
endif()

# Warnings for our own code only: third-party headers come in as system headers.
add_library(larder_warnings INTERFACE)
target_compile_options(larder_warnings INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion
  $<$<COMPILE_LANGUAGE:CXX>:-Wnon-virtual-dtor -Woverloaded-virtual>
  $<$<BOOL:${LARDER_WERROR}>:-Werror>
  $<$<CXX_COMPILER_ID:Clang>:-Wthread-safety -Wthread-safety-beta>)

# larder_library(NAME SOURCES... [DEPS targets...] [PRIVATE_DEPS targets...])
function(larder_library name)
  cmake_parse_arguments(arg "" "" "SOURCES;DEPS;PRIVATE_DEPS" ${ARGN})
  add_library(${name} STATIC ${arg_SOURCES})
  add_library(larder::${name} ALIAS ${name})
  target_include_directories(${name} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>)
  target_link_libraries(${name} PUBLIC ${arg_DEPS} PRIVATE ${arg_PRIVATE_DEPS} $<BUILD_INTERFACE:larder_warnings>)
endfunction()

# larder_program(NAME SOURCES... DEPS targets...)
function(larder_program name)
  cmake_parse_arguments(arg "" "" "SOURCES;DEPS" ${ARGN})
  add_executable(${name} ${arg_SOURCES})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(${name} PRIVATE ${arg_DEPS} larder_warnings)
endfunction()

# A ctest entry that says why it does not run; `ctest -V` prints it.
function(larder_skipped_test name reason)
  add_test(NAME ${name} COMMAND ${CMAKE_COMMAND} -E echo "skipped ${name}: ${reason}")
  set_tests_properties(${name} PROPERTIES SKIP_REGULAR_EXPRESSION "skipped ${name}: ")
  message(STATUS "skipped ${name}: ${reason}")
endfunction()

# Why tests with these labels do not run in this build; empty: they do.
function(larder_skip_reason labels out)
  set(reason "")
  if(LARDER_SANITIZE MATCHES "thread" AND labels MATCHES "e2e|grpc")
    set(reason "Debian's gRPC is not instrumented, so its hand-overs between threads look like races")
  elseif(LARDER_SANITIZE MATCHES "thread" AND labels MATCHES "rocksdb")
    set(reason "Debian's RocksDB is not instrumented, so its hand-overs between threads look like races")
  elseif(LARDER_SANITIZE MATCHES "thread" AND labels MATCHES "processes")
    set(reason "about what another process may do, not about threads")
  endif()
  set(${out} "${reason}" PARENT_SCOPE)
endfunction()

# larder_test(NAME SOURCES... DEPS targets... [LABELS labels...] [TIMEOUT s]): a GoogleTest program, one ctest entry.
function(larder_test name)
  cmake_parse_arguments(arg "" "TIMEOUT" "SOURCES;DEPS;LABELS" ${ARGN})
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 300)
  endif()
  add_executable(${name} ${arg_SOURCES})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(${name} PRIVATE ${arg_DEPS} GTest::gmock GTest::gtest_main larder_warnings)
  if(TARGET larder_test_headers)
    target_precompile_headers(${name} REUSE_FROM larder_test_headers)
  endif()
  larder_skip_reason("${arg_LABELS}" skip)
  if(skip)
    larder_skipped_test(${name} "${skip}")
    return()
  endif()
  if(LARDER_SANITIZE)
    math(EXPR arg_TIMEOUT "5 * ${arg_TIMEOUT}")  # as much slower a program may be
  endif()
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES TIMEOUT ${arg_TIMEOUT} LABELS "${arg_LABELS}")
  if(LARDER_SANITIZE MATCHES "address")
    # By default freed memory of 256 MiB is kept, which bounds on the daemon's memory would count.
    set_tests_properties(${name} PROPERTIES ENVIRONMENT "ASAN_OPTIONS=quarantine_size_mb=16")
  endif()
endfunction()

# larder_test_again(NAME PROGRAM ENVIRONMENT vars... [ARGUMENTS args...]): a test program once more, otherwise.  It runs
# under this name (a link), since GoogleTest calls its results after the program, and tests/run.sh counts by them.
function(larder_test_again name program)
  cmake_parse_arguments(arg "" "" "ENVIRONMENT;ARGUMENTS" ${ARGN})
  add_custom_command(TARGET ${program} POST_BUILD
    COMMAND ${CMAKE_COMMAND} -E create_symlink $<TARGET_FILE_NAME:${program}> $<TARGET_FILE_DIR:${program}>/${name})
  add_test(NAME ${name} COMMAND $<TARGET_FILE_DIR:${program}>/${name} ${arg_ARGUMENTS})
  set(timeout 120)
  if(LARDER_SANITIZE)
    set(timeout 600)
  endif()
  set_tests_properties(${name} PROPERTIES TIMEOUT ${timeout} ENVIRONMENT "${arg_ENVIRONMENT}")
endfunction()

# larder_python_test(NAME arguments...) runs NAME.py, beside the caller, with the path of larderd and the package kvlarder
function(larder_python_test name)
  larder_skip_reason("e2e" skip)
  if(LARDER_PYTHON_SKIPPED)
    set(skip "${LARDER_PYTHON_SKIPPED}")
  endif()
  if(skip)
    larder_skipped_test(${name} "${skip}")
    return()
  endif()
  add_test(NAME ${name} COMMAND ${Python_EXECUTABLE} -B ${CMAKE_CURRENT_SOURCE_DIR}/${name}.py $<TARGET_FILE:larderd> ${ARGN})
  set_tests_properties(${name} PROPERTIES ENVIRONMENT "PYTHONPATH=${LARDER_PYTHON_PATH}" LABELS "e2e" SKIP_RETURN_CODE 77)
endfunction()
