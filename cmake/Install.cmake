# `cmake --install` gives a tree that can be moved:
#   bin/tessera                 the front end
#   bin/tessera-fake-worker     what `tessera serve --fake-workers` starts
#   bin/tessera-picture-decoder what decodes callers' pictures, in a process without privileges
#   bin/tessera-worker          a few lines of shell that find LibTorch and start lib/tessera/tessera-worker
#   lib/tessera/libtessera_cuda.so  the CUDA plug-in, where it was built
#   lib/                        shared libraries, put there by scripts/bundle.sh only
#   lib/libtorch                link to the LibTorch of this clone; in the CPU archive its libraries
#   share/tessera/models/emoji  the embedded model
#   share/man, share/bash-completion, share/zsh, share/fish  manual pages and completions, which the program itself prints
#   include/tessera, lib/*.a, lib/cmake/Tessera, share/tessera/proto  the client library
# In a build folder bin/ and share/ are laid out alike, so programs find each other and the model in the same way.
# Programs are linked with DT_RPATH, not DT_RUNPATH: it also serves the libraries that the libraries need.

file(STRINGS ${PROJECT_SOURCE_DIR}/scripts/libtorch-requirements.txt libtorch_pin REGEX "^torch==")
string(REGEX REPLACE "^torch==([0-9.]+).*" "\\1" LIBTORCH_VERSION "${libtorch_pin}")
configure_file(${PROJECT_SOURCE_DIR}/cmake/launch-with-libtorch.sh ${PROJECT_BINARY_DIR}/launch-with-libtorch.sh @ONLY
  FILE_PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)

# Installs a program that needs LibTorch, and its launcher. Further arguments go to install().
function(tessera_install_with_libtorch target)
  if(NOT TARGET ${target})
    return()
  endif()
  set_target_properties(${target} PROPERTIES INSTALL_RPATH "$ORIGIN/..:$ORIGIN/../libtorch/torch/lib")
  target_link_options(${target} PRIVATE -Wl,--disable-new-dtags)
  install(TARGETS ${target} RUNTIME DESTINATION lib/tessera ${ARGN})
  install(PROGRAMS ${PROJECT_BINARY_DIR}/launch-with-libtorch.sh DESTINATION bin RENAME ${target} ${ARGN})
endfunction()

foreach(program tessera tessera-fake-worker tessera-picture-decoder)
  if(TARGET ${program})
    set_target_properties(${program} PROPERTIES
      INSTALL_RPATH "$ORIGIN/../lib"
      RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
    target_link_options(${program} PRIVATE -Wl,--disable-new-dtags)
    install(TARGETS ${program} RUNTIME DESTINATION bin COMPONENT tessera)
  endif()
endforeach()
tessera_install_with_libtorch(tessera-worker COMPONENT tessera)
if(TARGET tessera-worker)
  set_target_properties(tessera-worker PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
endif()
# Only in the CUDA archive: they prove another machine's results against tests/golden, and measure it.
foreach(program tessera-golden bench_operators bench_shapes)
  tessera_install_with_libtorch(${program} COMPONENT golden EXCLUDE_FROM_ALL)
endforeach()
install(PROGRAMS ${PROJECT_SOURCE_DIR}/scripts/golden.sh ${PROJECT_SOURCE_DIR}/scripts/first-card.sh
          ${PROJECT_SOURCE_DIR}/scripts/first_card.py ${PROJECT_SOURCE_DIR}/scripts/first_card_report.py
          ${PROJECT_SOURCE_DIR}/scripts/nccl_checks.py ${PROJECT_SOURCE_DIR}/scripts/nccl_bandwidth.py
          ${PROJECT_SOURCE_DIR}/scripts/full_size_models.py
  DESTINATION scripts COMPONENT golden EXCLUDE_FROM_ALL OPTIONAL)
if(TARGET tessera_cuda)
  set_target_properties(tessera_cuda PROPERTIES INSTALL_RPATH "$ORIGIN/../libtorch/torch/lib")
  install(TARGETS tessera_cuda LIBRARY DESTINATION lib/tessera COMPONENT tessera)
endif()
if(TESSERA_WITH_LIBTORCH)
  install(CODE "
    set(link \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/lib/libtorch\")
    message(STATUS \"Linking: \${link}\")
    file(MAKE_DIRECTORY \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/lib\")
    file(CREATE_LINK \"${TESSERA_LIBTORCH_DIR}\" \"\${link}\" SYMBOLIC)" COMPONENT libtorch-link)
endif()

file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/share/tessera)
file(CREATE_LINK ${PROJECT_SOURCE_DIR}/assets ${PROJECT_BINARY_DIR}/share/tessera/models SYMBOLIC)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/assets/emoji DESTINATION share/tessera/models COMPONENT tessera)
install(DIRECTORY ${PROJECT_BINARY_DIR}/share/man ${PROJECT_BINARY_DIR}/share/bash-completion ${PROJECT_BINARY_DIR}/share/zsh
  ${PROJECT_BINARY_DIR}/share/fish DESTINATION share COMPONENT tessera)
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION share/doc/tessera COMPONENT tessera)
install(FILES ${PROJECT_SOURCE_DIR}/README.md DESTINATION share/doc/tessera COMPONENT tessera OPTIONAL)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/docs/ DESTINATION share/doc/tessera COMPONENT tessera FILES_MATCHING PATTERN "*.md")

# The client library, for programs that find_package(Tessera): component client.
set_target_properties(tessera_image_client PROPERTIES EXPORT_NAME image_client)
set_target_properties(tessera_api_messages PROPERTIES EXPORT_NAME api_messages)
set_target_properties(tessera_random PROPERTIES EXPORT_NAME random)
install(TARGETS tessera_image_client tessera_api_messages tessera_random EXPORT TesseraTargets
  ARCHIVE DESTINATION lib COMPONENT client INCLUDES DESTINATION include)
install(FILES ${PROJECT_SOURCE_DIR}/client/sdk/include/tessera/image_client.h DESTINATION include/tessera COMPONENT client)
install(FILES ${PROJECT_BINARY_DIR}/proto/tessera/v1/image_service.pb.h DESTINATION include/tessera/v1 COMPONENT client)
install(FILES ${PROJECT_SOURCE_DIR}/proto/tessera/v1/image_service.proto
  DESTINATION share/tessera/proto/tessera/v1 COMPONENT client)
include(CMakePackageConfigHelpers)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/TesseraConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_SOURCE_DIR}/cmake/TesseraConfig.cmake ${PROJECT_BINARY_DIR}/TesseraConfigVersion.cmake
  DESTINATION lib/cmake/Tessera COMPONENT client)
install(EXPORT TesseraTargets NAMESPACE Tessera:: DESTINATION lib/cmake/Tessera COMPONENT client)
