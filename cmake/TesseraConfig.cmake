# find_package(Tessera) gives Tessera::image_client, whose header is tessera/image_client.h.
include(CMakeFindDependencyMacro)
find_dependency(Threads)
find_dependency(OpenSSL)
find_dependency(absl)
find_dependency(Protobuf)
include(${CMAKE_CURRENT_LIST_DIR}/TesseraTargets.cmake)
