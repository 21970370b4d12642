# tessera_library, tessera_executable, tessera_test: every target of the project is made by one of these.
# TORCH marks what includes LibTorch; such targets are skipped when TESSERA_WITH_LIBTORCH is off.

add_library(tessera_options INTERFACE)
target_include_directories(tessera_options INTERFACE ${PROJECT_SOURCE_DIR} ${PROJECT_BINARY_DIR})
target_compile_options(tessera_options INTERFACE -Wall -Wextra -Werror -Wno-unused-parameter -Wno-missing-field-initializers)
# Assertions name files from the root of the project, wherever that lies.
target_compile_options(tessera_options INTERFACE -ffile-prefix-map=${PROJECT_SOURCE_DIR}/=)
if(TESSERA_SANITIZE)
  target_compile_options(tessera_options INTERFACE -fsanitize=${TESSERA_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(tessera_options INTERFACE -fsanitize=${TESSERA_SANITIZE})
  # GCC's sanitizers make it report uninitialised reads inside the standard library.
  target_compile_options(tessera_options INTERFACE $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
endif()
if(TESSERA_SANITIZE MATCHES thread)
  # ThreadSanitizer knows nothing of fences, and GCC says so. The queues of Asio have locks besides.
  target_compile_definitions(tessera_options INTERFACE BOOST_ASIO_DISABLE_FENCED_BLOCK)
endif()

if(TESSERA_FUZZ)
  target_compile_options(tessera_options INTERFACE -fsanitize=fuzzer-no-link)
endif()

# A compiler cache sees through precompiled headers only when the compiler keeps their names in its output.
target_compile_options(tessera_options INTERFACE $<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>)

# Programs would be compiled with -fPIE, and a precompiled header made with -fPIC refuses to serve them.
target_compile_options(tessera_options INTERFACE -fPIC)

# Most of what a small file costs are these headers: they are compiled once for the product and once for the tests.
# -O1 for tests, which are compiled once and run once.
function(tessera_precompiled name)
  file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/${name}.cc CONTENT "")
  add_library(${name} STATIC ${PROJECT_BINARY_DIR}/${name}.cc)
  target_link_libraries(${name} PUBLIC tessera_options)
  target_precompile_headers(${name} PRIVATE <algorithm> <functional> <map> <memory> <mutex> <optional> <string> <vector>
    <absl/status/statusor.h> <absl/strings/str_cat.h> <absl/strings/str_split.h> <absl/time/time.h> ${ARGN})
endfunction()
tessera_precompiled(tessera_pch)
if(BUILD_TESTING)
  tessera_precompiled(tessera_test_pch <gmock/gmock.h> <gtest/gtest.h>)
  target_link_libraries(tessera_test_pch PUBLIC GTest::gmock)
  target_compile_options(tessera_test_pch PRIVATE -O1)
endif()

function(tessera_configure target)
  cmake_parse_arguments(PARSE_ARGV 1 ARG "TEST;TORCH" "" "LIBS")
  target_link_libraries(${target} PUBLIC ${ARG_LIBS} $<BUILD_INTERFACE:tessera_options>)
  if(ARG_TORCH)
    target_link_libraries(${target} PUBLIC tessera::torch)
    target_precompile_headers(${target} REUSE_FROM tessera_torch_pch)
  else()
    if(ARG_TEST)
      target_precompile_headers(${target} REUSE_FROM tessera_test_pch)
    else()
      target_precompile_headers(${target} REUSE_FROM tessera_pch)
    endif()
    # GCC 12 reports impossible reads inside the standard library where that comes out of a precompiled header.
    target_compile_options(${target} PRIVATE
      $<$<CXX_COMPILER_ID:GNU>:-Wno-array-bounds;-Wno-stringop-overflow;-Wno-stringop-overread;-Wno-restrict>)
  endif()
endfunction()

# tessera_library(NAME [TORCH] SOURCES a.cc … [LIBS lib …])
function(tessera_library name)
  cmake_parse_arguments(PARSE_ARGV 1 ARG "TORCH" "" "SOURCES;LIBS")
  if(ARG_TORCH AND NOT TESSERA_WITH_LIBTORCH)
    return()
  endif()
  add_library(${name} STATIC ${ARG_SOURCES})
  if(ARG_TORCH)
    tessera_configure(${name} TORCH LIBS ${ARG_LIBS})
  else()
    tessera_configure(${name} LIBS ${ARG_LIBS})
  endif()
endfunction()

# tessera_executable(NAME [TORCH] SOURCES a.cc … [LIBS lib …])
function(tessera_executable name)
  cmake_parse_arguments(PARSE_ARGV 1 ARG "TORCH" "" "SOURCES;LIBS")
  if(ARG_TORCH AND NOT TESSERA_WITH_LIBTORCH)
    return()
  endif()
  add_executable(${name} ${ARG_SOURCES})
  if(ARG_TORCH)
    tessera_configure(${name} TORCH LIBS ${ARG_LIBS})
  else()
    tessera_configure(${name} LIBS ${ARG_LIBS})
  endif()
endfunction()

# tessera_test(NAME [TORCH] SOURCES a_test.cc … [LIBS lib …] [TIMEOUT seconds] [ARGS …])
# One GoogleTest executable, one CTest test of the same name. Every test has a timeout.
function(tessera_test name)
  cmake_parse_arguments(PARSE_ARGV 1 ARG "TORCH" "TIMEOUT" "SOURCES;LIBS;ARGS")
  if(NOT BUILD_TESTING OR (ARG_TORCH AND NOT TESSERA_WITH_LIBTORCH))
    return()
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  add_executable(${name} ${ARG_SOURCES})
  if(ARG_TORCH)
    tessera_configure(${name} TORCH LIBS ${ARG_LIBS} GTest::gmock GTest::gtest_main)
  else()
    tessera_configure(${name} TEST LIBS ${ARG_LIBS} GTest::gmock GTest::gtest_main)
    target_compile_options(${name} PRIVATE -O1)
  endif()
  add_test(NAME ${name} COMMAND ${name} ${ARG_ARGS} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  set_tests_properties(${name} PROPERTIES TIMEOUT ${ARG_TIMEOUT})
  if(ARG_TORCH)
    tessera_passive_openmp(${name})
  endif()
endfunction()

# tessera_passive_openmp(TEST …): tests that run with others at once, or that have several ranks in one process, have
# more threads than there are cores: OpenMP's must sleep while they wait, or a test takes many times as long.
function(tessera_passive_openmp)
  set_tests_properties(${ARGN} PROPERTIES ENVIRONMENT OMP_WAIT_POLICY=PASSIVE)
endfunction()

# tessera_fuzz(NAME SOURCES a_fuzz.cc CORPUS folder [MAX_LEN bytes] [LIBS lib …])
# The target defines LLVMFuzzerTestOneInput. Without libFuzzer the corpus is replayed as an ordinary test. With it, new
# inputs go to the build folder and the corpus is only read, cut at MAX_LEN where that is given; executions.txt in the
# build folder says how many inputs each run tried. The target fuzz_targets builds them all.
add_custom_target(fuzz_targets)
function(tessera_fuzz name)
  cmake_parse_arguments(PARSE_ARGV 1 ARG "" "CORPUS;MAX_LEN" "SOURCES;LIBS")
  if(NOT BUILD_TESTING)
    return()
  endif()
  if(TESSERA_FUZZ)
    add_executable(${name} ${ARG_SOURCES})
    tessera_configure(${name} LIBS ${ARG_LIBS})
    target_link_options(${name} PRIVATE -fsanitize=fuzzer)
    set(found ${CMAKE_CURRENT_BINARY_DIR}/${name}_found)
    file(MAKE_DIRECTORY ${found})
    set(options)
    if(ARG_MAX_LEN)
      set(options -max_len=${ARG_MAX_LEN})
    endif()
    add_test(NAME ${name} COMMAND ${PROJECT_SOURCE_DIR}/tests/fuzz_runner/run_target.sh ${PROJECT_BINARY_DIR}/executions.txt
             ${found} ${ARG_CORPUS} $<TARGET_FILE:${name}> ${options})
    set_tests_properties(${name} PROPERTIES TIMEOUT 300)
  else()
    add_executable(${name} ${ARG_SOURCES} ${PROJECT_SOURCE_DIR}/tests/fuzz_replay_main.cc)
    tessera_configure(${name} LIBS ${ARG_LIBS})
    add_test(NAME ${name} COMMAND ${name} ${ARG_CORPUS})
    set_tests_properties(${name} PROPERTIES TIMEOUT 120)
  endif()
  add_dependencies(fuzz_targets ${name})
endfunction()
