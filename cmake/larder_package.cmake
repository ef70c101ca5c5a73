# Debian packages of a build: `cd build/release && cpack -G DEB`.
#
#   larder          larderd as a service, the tools, their pages.  Whatever an install rule gives no component.
#   liblarder-dev   headers, static library, CMake package and wire contract: component `dev`
#
# What only a package has (units, configuration file, Debian's own pages) is component `package`, which a plain
# `cmake --install` leaves out.  tests/package builds both, looks at them with lintian, installs, uses and purges them.

set(deploy ${PROJECT_SOURCE_DIR}/deploy)
set(package_out ${PROJECT_BINARY_DIR}/package)

function(larder_package_file source destination)
  cmake_parse_arguments(arg "" "RENAME" "" ${ARGN})
  if(NOT arg_RENAME)
    get_filename_component(arg_RENAME ${source} NAME)
  endif()
  install(FILES ${source} DESTINATION ${destination} RENAME ${arg_RENAME} COMPONENT package EXCLUDE_FROM_ALL)
endfunction()

# Debian wants its changelog compressed, the same way each time.
file(MAKE_DIRECTORY ${package_out})
configure_file(${deploy}/debian/changelog ${package_out}/changelog COPYONLY)
execute_process(COMMAND gzip -9nkf ${package_out}/changelog COMMAND_ERROR_IS_FATAL ANY)
file(STRINGS ${deploy}/debian/changelog changelog_top LIMIT_COUNT 1)
if(NOT changelog_top MATCHES "^larder \\(${PROJECT_VERSION}\\)")
  message(FATAL_ERROR "deploy/debian/changelog begins with another version than ${PROJECT_VERSION}")
endif()

foreach(unit larderd.service larderd.socket larderd-control.socket larderd-admin.socket)
  larder_package_file(${deploy}/systemd/${unit} /usr/lib/systemd/system)
endforeach()
larder_package_file(${deploy}/systemd/larder.sysusers /usr/lib/sysusers.d RENAME larder.conf)
larder_package_file(${deploy}/systemd/larder.tmpfiles /usr/lib/tmpfiles.d RENAME larder.conf)
# The package makes the group of control.sock, so its configuration names it, where an administrator may name another.
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${deploy}/larderd.toml)
file(READ ${deploy}/larderd.toml configuration)
string(REPLACE "\n#control_socket_group = \"\"\n" "\ncontrol_socket_group = \"larder-control\"\n"
  packaged_configuration "${configuration}")
if(packaged_configuration STREQUAL configuration)
  message(FATAL_ERROR "deploy/larderd.toml has no line of control_socket_group to replace")
endif()
file(WRITE ${package_out}/larderd.toml "${packaged_configuration}")
larder_package_file(${package_out}/larderd.toml /etc/larder)
larder_package_file(${PROJECT_SOURCE_DIR}/README.md /usr/share/doc/larder)
foreach(package larder liblarder-dev)
  set(component package)
  if(package STREQUAL "liblarder-dev")
    set(component dev)
  endif()
  foreach(page ${deploy}/debian/copyright ${package_out}/changelog.gz)
    install(FILES ${page} DESTINATION /usr/share/doc/${package} COMPONENT ${component} EXCLUDE_FROM_ALL)
  endforeach()
endforeach()

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME larder)
set(CPACK_PACKAGE_CONTACT "Larder maintainers <larder@packages.example.org>")
set(CPACK_INSTALL_PREFIX /usr)
set(CPACK_SET_DESTDIR ON)  # the units' and the configuration's places are absolute
set(CPACK_STRIP_FILES ON)
set(CPACK_PRE_BUILD_SCRIPTS ${CMAKE_CURRENT_LIST_DIR}/compress_pages.cmake)
set(CPACK_COMPONENTS_ALL Unspecified package dev)
set(CPACK_COMPONENT_UNSPECIFIED_GROUP run)
set(CPACK_COMPONENT_PACKAGE_GROUP run)
set(CPACK_COMPONENT_DEV_GROUP dev)
set(CPACK_COMPONENTS_GROUPING ONE_PER_GROUP)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)

set(CPACK_DEBIAN_RUN_PACKAGE_NAME larder)
set(CPACK_DEBIAN_RUN_PACKAGE_SECTION net)
set(CPACK_DEBIAN_RUN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_RUN_PACKAGE_DEPENDS
  "systemd | systemd-standalone-sysusers, systemd | systemd-standalone-tmpfiles")
set(CPACK_DEBIAN_RUN_PACKAGE_CONTROL_EXTRA
  "${deploy}/debian/postinst;${deploy}/debian/prerm;${deploy}/debian/postrm;${deploy}/debian/conffiles")
set(CPACK_COMPONENT_RUN_DESCRIPTION
"A daemon on each node keeps the KV cache of large language models in a pool
of shared memory, and on disk if told so. Engine processes store the KV of
token blocks in it, and others get them back instead of computing them again.
.
This package has the daemon, as a service, and its tools.")

set(CPACK_DEBIAN_DEV_PACKAGE_NAME liblarder-dev)
set(CPACK_DEBIAN_DEV_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_DEV_PACKAGE_DEPENDS
  "libgrpc++-dev, libprotobuf-dev, libabsl-dev, libssl-dev, libxxhash-dev, libzstd-dev, pkg-config")
set(CPACK_COMPONENT_DEV_DESCRIPTION
"A daemon on each node keeps the KV cache of large language models in a pool
of shared memory, and on disk if told so.
.
This package has the C++ library by which engines use it, for CMake's
find_package(larder), and the wire contract for other languages.")

include(CPack)
cpack_add_component_group(run)
cpack_add_component_group(dev)
