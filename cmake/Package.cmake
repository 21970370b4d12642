# `cpack -G DEB` in the build folder makes tessera_VERSION_amd64.deb of deploy/debian/: the programs with the LibTorch that
# they load, manual pages, completions, a configuration and a service. Its tree is laid out by a script alone.
set(maintainer "Tessera maintainers <maintainers@tessera.example>")
if(DEFINED ENV{TESSERA_MAINTAINER})
  set(maintainer "$ENV{TESSERA_MAINTAINER}")
endif()
set(TESSERA_MAINTAINER "${maintainer}" CACHE STRING "Who answers for packages, as NAME <ADDRESS>")
configure_file(${PROJECT_SOURCE_DIR}/cmake/package-tree.cmake.in ${PROJECT_BINARY_DIR}/package-tree.cmake @ONLY)

set(debian ${PROJECT_SOURCE_DIR}/deploy/debian)
set(CPACK_GENERATOR DEB)
set(CPACK_SOURCE_GENERATOR "")
set(CPACK_INSTALL_CMAKE_PROJECTS "")
set(CPACK_INSTALL_SCRIPTS ${PROJECT_BINARY_DIR}/package-tree.cmake)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_PACKAGE_NAME tessera)
set(CPACK_PACKAGE_CONTACT "${TESSERA_MAINTAINER}")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "diffusion-transformer image server and command line")
set(CPACK_PACKAGE_DESCRIPTION "Tessera makes images from text with diffusion transformers: FLUX.1, Stable
Diffusion 3, PixArt, HunyuanDiT and DiT in the layout of diffusers. It serves
them over HTTP and gRPC with a durable queue, or makes them from the command
line, and needs no Python.
.
A small model is embedded; others are folders.")
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION graphics)
set(CPACK_DEBIAN_PACKAGE_PRIORITY optional)
set(CPACK_DEBIAN_PACKAGE_DEPENDS "adduser, ca-certificates")
set(CPACK_DEBIAN_PACKAGE_CONTROL_EXTRA ${debian}/conffiles ${debian}/postinst ${debian}/prerm ${debian}/postrm)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
if(TESSERA_WITH_LIBTORCH)
  set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${TESSERA_LIBTORCH_DIR}/torch/lib ${TESSERA_LIBTORCH_DIR}/nvidia/cu13/lib)
endif()
set(CPACK_DEBIAN_COMPRESSION_TYPE gzip)  # of LibTorch's 450 MB, xz would take minutes
include(CPack)
