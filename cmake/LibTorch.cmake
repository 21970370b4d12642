# LibTorch from the PyPI wheel, unpacked by scripts/setup.sh. The wheel's find_package(Torch) demands a CUDA toolkit,
# so its libraries are linked through this interface target instead.
set(TESSERA_LIBTORCH_DIR "${PROJECT_SOURCE_DIR}/.deps/libtorch" CACHE PATH "Folder holding torch/ and nvidia/ of the unpacked wheels")
if(NOT EXISTS "${TESSERA_LIBTORCH_DIR}/torch/lib/libtorch_cpu.so")
  message(FATAL_ERROR "LibTorch is not in ${TESSERA_LIBTORCH_DIR}; run scripts/setup.sh or pass -DTESSERA_WITH_LIBTORCH=OFF")
endif()

add_library(tessera_torch INTERFACE)
add_library(tessera::torch ALIAS tessera_torch)
target_include_directories(tessera_torch SYSTEM INTERFACE ${TESSERA_LIBTORCH_DIR}/torch/include)
target_link_libraries(tessera_torch INTERFACE
  ${TESSERA_LIBTORCH_DIR}/torch/lib/libtorch_cpu.so
  ${TESSERA_LIBTORCH_DIR}/torch/lib/libc10.so)
# libtorch_cpu finds its CUDA libraries by itself at run time. Our programs must not name them: a LibTorch built for
# the CPU only, which a bundle may be pointed at, has none.
target_link_options(tessera_torch INTERFACE -Wl,-rpath-link,${TESSERA_LIBTORCH_DIR}/nvidia/cu13/lib)
# GCC 12's optimiser reports uninitialised and overlong reads inside ATen's and its own headers.
target_compile_options(tessera_torch INTERFACE -Wno-maybe-uninitialized -Wno-array-bounds -Wno-stringop-overflow -Wno-stringop-overread -Wno-restrict)

# One precompiled header for every file that includes LibTorch: 15 s become 2 to 5 s a file.
file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/tessera_torch_pch.cc CONTENT "")
add_library(tessera_torch_pch STATIC ${PROJECT_BINARY_DIR}/tessera_torch_pch.cc)
target_link_libraries(tessera_torch_pch PUBLIC tessera_options tessera::torch)
target_precompile_headers(tessera_torch_pch PRIVATE <ATen/ATen.h> <torch/library.h> <string> <vector> <memory> <optional>)
