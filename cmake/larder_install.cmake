# What an installed prefix holds, so that `find_package(larder)` gives larder::client:
#
#   bin/                larderd, larderctl
#   lib/                liblarder_client.a and the static libraries it leans on
#   lib/cmake/larder/   the package; asks for Debian 12's gRPC, Protobuf, Abseil, OpenSSL, xxHash
#   include/larder/     the public headers, under their paths in this repository: "client/client.h"
#   share/larder/proto/ the wire contract, for other languages
#   share/man/          larderctl(1), larderd(8), made by the programs themselves
#   share/bash-completion/, share/zsh/, share/fish/
#                       completion of larderctl, likewise
#
# Component `dev` is what engines are built with; larder_package.cmake makes packages.
# tests/consumer builds a project against it.
include(CMakePackageConfigHelpers)

set(larder_package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/larder)

# The client library and what a static library of it needs at link time.  Of these only client is a promise.
set_target_properties(larder_client PROPERTIES EXPORT_NAME client)
add_library(larder::client ALIAS larder_client)  # the same name inside this build
install(TARGETS larder_client larder_client_transport larder_client_local larder_client_rpc larder_client_session
                larder_client_restore larder_client_restore_stage larder_client_restore_request
                larder_client_restore_costs larder_cuda larder_storage larder_storage_format larder_storage_memory
                larder_storage_codec larder_proto_messages larder_proto_convert larder_proto_frames larder_proto
        EXPORT larder_targets
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT dev
        INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/larder)
install(EXPORT larder_targets NAMESPACE larder:: DESTINATION ${larder_package_dir} COMPONENT dev)

# What engines include, and what that includes; tests/structure/include_rules.toml keeps that list short.
foreach(header client/client.h client/promise.h client/device_imports.h client/paged_cache.h client/restorer.h client/paged_restore.h
               client/restore/request/options.h client/restore/costs/profile.h proto/messages/client_messages.h
               cuda/device.h cuda/paged_layout.h storage/types.h storage/format/block_key.h storage/clock.h storage/format/layout.h)
  get_filename_component(folder ${header} DIRECTORY)
  install(FILES ${PROJECT_SOURCE_DIR}/${header} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/larder/${folder}
          COMPONENT dev)
endforeach()

install(TARGETS larderd larderctl RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})

# larder_page(FILE PROGRAM ARGUMENTS DIRECTORY): what a program prints of itself, made with every build.
set(larder_pages)
function(larder_page file program arguments directory)
  separate_arguments(arguments UNIX_COMMAND "${arguments}")
  add_custom_command(OUTPUT ${PROJECT_BINARY_DIR}/pages/${file}
    COMMAND ${CMAKE_COMMAND} -E make_directory ${PROJECT_BINARY_DIR}/pages
    COMMAND ${program} ${arguments} > ${PROJECT_BINARY_DIR}/pages/${file}
    DEPENDS ${program} VERBATIM)
  install(FILES ${PROJECT_BINARY_DIR}/pages/${file} DESTINATION ${directory})
  set(larder_pages ${larder_pages} ${PROJECT_BINARY_DIR}/pages/${file} PARENT_SCOPE)
endfunction()
larder_page(larderctl.1 larderctl --print-man-page ${CMAKE_INSTALL_MANDIR}/man1)
larder_page(larderd.8 larderd --print-man-page ${CMAKE_INSTALL_MANDIR}/man8)
larder_page(larderctl larderctl "completion bash" ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)
larder_page(_larderctl larderctl "completion zsh" ${CMAKE_INSTALL_DATADIR}/zsh/vendor-completions)
larder_page(larderctl.fish larderctl "completion fish" ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d)
add_custom_target(larder_pages ALL DEPENDS ${larder_pages})

install(DIRECTORY ${PROJECT_SOURCE_DIR}/proto/larder DESTINATION ${CMAKE_INSTALL_DATADIR}/larder/proto
        COMPONENT dev FILES_MATCHING PATTERN "*.proto")
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/docs DESTINATION ${CMAKE_INSTALL_DOCDIR})

configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/larder-config.cmake.in
  ${PROJECT_BINARY_DIR}/larder-config.cmake INSTALL_DESTINATION ${larder_package_dir} NO_SET_AND_CHECK_MACRO)
# Before 1.0 a minor version may change the API.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/larder-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/larder-config.cmake ${PROJECT_BINARY_DIR}/larder-config-version.cmake
        DESTINATION ${larder_package_dir} COMPONENT dev)
