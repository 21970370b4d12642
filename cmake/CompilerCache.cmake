# Compilers run through ccache where it is installed. Its folder is the user's (ccache --show-config), outside the clone
# and of every build folder, so a second clone or preset finds what the first has compiled.
option(TESSERA_CCACHE "Compile through ccache where it is found" ON)
find_program(TESSERA_CCACHE_PROGRAM ccache)
mark_as_advanced(TESSERA_CCACHE_PROGRAM)
if(TESSERA_CCACHE AND TESSERA_CCACHE_PROGRAM AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # Without the sloppiness nothing could be kept with precompiled headers. A clone in another folder finds what this one
  # has compiled, because paths below the root count from the working folder.
  set(CMAKE_CXX_COMPILER_LAUNCHER env CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=1
    CCACHE_SLOPPINESS=pch_defines,time_macros ${TESSERA_CCACHE_PROGRAM})
endif()
