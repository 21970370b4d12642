# The CUDA plug-in (kernels/cuda). TESSERA_CUDA says whether it is built:
#   AUTO  where nvcc is found and is of the CUDA version that LibTorch was built with
#   ON    the same, and it is an error where that is not so
#   OFF   never
# nvcc comes from .deps/cuda where scripts/setup.sh had to put it there, else from the machine. Of LibTorch only its own libraries
# are needed: cuDNN, cuBLAS and NCCL first at run time.
# Sets TESSERA_BUILD_CUDA.
set(TESSERA_CUDA AUTO CACHE STRING "Build the CUDA plug-in: AUTO, ON or OFF")
set_property(CACHE TESSERA_CUDA PROPERTY STRINGS AUTO ON OFF)
# From Ampere on; the PTX serves GPUs that are newer than all of these.
set(CMAKE_CUDA_ARCHITECTURES 80-real 86-real 89-real 90a-real 100f-real 120f-real 90-virtual CACHE STRING
    "GPUs that the CUDA plug-in has code for")
set(TESSERA_BUILD_CUDA OFF)

if(TESSERA_CUDA)
  find_program(TESSERA_NVCC nvcc HINTS ${PROJECT_SOURCE_DIR}/.deps/cuda/nvidia/cu13 ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda PATH_SUFFIXES bin)
  set(cuda_missing "")
  set(libtorch_cuda_release none)
  file(STRINGS ${TESSERA_LIBTORCH_DIR}/torch/version.py libtorch_cuda_line REGEX "^cuda.*'[0-9.]+'")
  if(libtorch_cuda_line MATCHES "'([0-9]+)\\.([0-9]+)")
    set(libtorch_cuda_release ${CMAKE_MATCH_1})
  endif()
  if(NOT TESSERA_NVCC)
    set(cuda_missing "nvcc was not found; scripts/setup.sh --preset cuda fetches it, or set CUDA_HOME")
  elseif(NOT EXISTS ${TESSERA_LIBTORCH_DIR}/torch/lib/libtorch_cuda.so)
    set(cuda_missing "this LibTorch is built for the CPU only")
  else()
    execute_process(COMMAND ${TESSERA_NVCC} --version OUTPUT_VARIABLE nvcc_version)
    string(REGEX MATCH "release ([0-9]+)" nvcc_release "${nvcc_version}")
    if(NOT CMAKE_MATCH_1 STREQUAL libtorch_cuda_release)
      set(cuda_missing "nvcc is of CUDA ${CMAKE_MATCH_1} and LibTorch of CUDA ${libtorch_cuda_release}")
    endif()
  endif()
  if(NOT cuda_missing)
    set(TESSERA_BUILD_CUDA ON)
    set(CMAKE_CUDA_COMPILER ${TESSERA_NVCC})
    if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
      set(CMAKE_CUDA_HOST_COMPILER ${CMAKE_CXX_COMPILER})
    endif()
    # CMake 3.25 tries the compiler with these names, and does not know all of them.
    set(CMAKE_CUDA_ARCHITECTURES 90)
    enable_language(CUDA)
    unset(CMAKE_CUDA_ARCHITECTURES)  # those of the cache again
    # What newer versions than CMake 3.25 know themselves.
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
    # As users read it.
    list(TRANSFORM CMAKE_CUDA_ARCHITECTURES REPLACE "-real$" "" OUTPUT_VARIABLE TESSERA_CUDA_ARCHITECTURES)
    list(TRANSFORM TESSERA_CUDA_ARCHITECTURES REPLACE "^(.*)-virtual$" "PTX of \\1")
    list(JOIN TESSERA_CUDA_ARCHITECTURES ", " TESSERA_CUDA_ARCHITECTURES)
    message(STATUS "CUDA plug-in: yes, for ${TESSERA_CUDA_ARCHITECTURES}")
  elseif(TESSERA_CUDA STREQUAL AUTO)
    message(STATUS "CUDA plug-in: no (${cuda_missing})")
  else()
    message(FATAL_ERROR "TESSERA_CUDA is ${TESSERA_CUDA}, and the CUDA plug-in cannot be built: ${cuda_missing}")
  endif()
endif()
