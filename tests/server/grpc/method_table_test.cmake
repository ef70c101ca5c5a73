# A method without a line in server/grpc/method_table.h must not build.  This test compiles the
# table as it is, then with one more method in the contract, then with one line less in the table.
# It produces no object file and examines only the compiler's output.

set(table ${SOURCE}/server/grpc/method_table.cc)
file(REMOVE_RECURSE ${WORK})
file(MAKE_DIRECTORY ${WORK})
separate_arguments(flags UNIX_COMMAND "${FLAGS}")
set(says "server/grpc/method_table.h: say at which sockets each method of Cache is served")

function(compile what expected)  # further arguments: folders that come first
  list(TRANSFORM ARGN PREPEND -I OUTPUT_VARIABLE first)
  execute_process(COMMAND ${COMPILER} ${flags} -std=c++20 -fsyntax-only ${first} -I ${PROTOS} -I ${SOURCE} ${table}
    RESULT_VARIABLE code ERROR_VARIABLE errors)
  if(expected STREQUAL "builds" AND NOT code EQUAL 0)
    message(FATAL_ERROR "${what}: it does not build\n${errors}")
  elseif(expected STREQUAL "fails" AND code EQUAL 0)
    message(FATAL_ERROR "${what}: it builds")
  elseif(expected STREQUAL "fails")
    string(FIND "${errors}" "${says}" at)
    if(at EQUAL -1)
      message(FATAL_ERROR "${what}: the compiler does not say why\n${errors}")
    endif()
  endif()
  message(STATUS "${what}: ${expected}, as it should")
endfunction()

compile("the table as it is" builds)

file(MAKE_DIRECTORY ${WORK}/protos/larder/v1 ${WORK}/more)
file(COPY ${SOURCE}/proto/larder/v1/types.proto DESTINATION ${WORK}/protos/larder/v1)
file(READ ${SOURCE}/proto/larder/v1/cache.proto proto)
string(REPLACE "service Cache {" "service Cache {\n  rpc Forgotten(LookupRequest) returns (LookupReply);\n" more "${proto}")
if(more STREQUAL proto)
  message(FATAL_ERROR "cache.proto has no service Cache")
endif()
file(WRITE ${WORK}/protos/larder/v1/cache.proto "${more}")
execute_process(COMMAND ${PROTOC} -I ${WORK}/protos --cpp_out=${WORK}/more --grpc_out=${WORK}/more
    --plugin=protoc-gen-grpc=${PLUGIN} larder/v1/cache.proto COMMAND_ERROR_IS_FATAL ANY)
compile("a method more in cache.proto" fails ${WORK}/more)

file(READ ${SOURCE}/server/grpc/method_table.h lines)
string(REGEX REPLACE "\n[^\n]*WithCallbackMethod_Move,[^\n]*" "" less "${lines}")
if(less STREQUAL lines)
  message(FATAL_ERROR "the table has no line of Move")
endif()
file(WRITE ${WORK}/less/server/grpc/method_table.h "${less}")
compile("a line less in the table" fails ${WORK}/less)
