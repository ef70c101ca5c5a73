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
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE})
  set(CMAKE_C_COMPILER_LAUNCHER ${CCACHE})
endif()

if(LARDER_SANITIZE)
  add_compile_options(-fsanitize=${LARDER_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${LARDER_SANITIZE})
endif()

# Warnings for our own code only: third-party headers come in as system headers.
add_library(larder_warnings INTERFACE)
target_compile_options(larder_warnings INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion -Wnon-virtual-dtor -Woverloaded-virtual
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

# larder_test(NAME SOURCES... DEPS targets... [LABELS labels...] [TIMEOUT s]): a GoogleTest program, one ctest entry.
function(larder_test name)
  cmake_parse_arguments(arg "" "TIMEOUT" "SOURCES;DEPS;LABELS" ${ARGN})
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 120)
  endif()
  add_executable(${name} ${arg_SOURCES})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(${name} PRIVATE ${arg_DEPS} GTest::gmock GTest::gtest_main larder_warnings)
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES TIMEOUT ${arg_TIMEOUT} LABELS "${arg_LABELS}")
  # Debian's gRPC is not instrumented, so its hand-overs between threads look like races; and what is about
  # processes is not about threads.
  if(LARDER_SANITIZE MATCHES "thread" AND arg_LABELS MATCHES "e2e|processes")
    set_tests_properties(${name} PROPERTIES DISABLED TRUE)
  endif()
  if(LARDER_SANITIZE MATCHES "address")
    # By default freed memory of 256 MiB is kept, which bounds on the daemon's memory would count.
    set_tests_properties(${name} PROPERTIES ENVIRONMENT "ASAN_OPTIONS=quarantine_size_mb=16")
  endif()
endfunction()
