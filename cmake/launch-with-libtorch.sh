#!/bin/sh
# Starts the program of the same name in ../lib/tessera with the libraries of LibTorch. They are searched for in
#   $TESSERA_LIBTORCH  a folder that holds torch/lib: the unpacked wheel, or the site-packages of an installed one
#   ../lib/libtorch    the same, as a folder or a link in the installed tree
here=$(dirname "$(readlink -f "$0")")
libtorch=${TESSERA_LIBTORCH:-$here/../lib/libtorch}
if [ ! -e "$libtorch/torch/lib/libtorch_cpu.so" ]; then
  if [ -n "$TESSERA_LIBTORCH" ]; then
    echo "TESSERA_LIBTORCH is $libtorch, which holds no torch/lib/libtorch_cpu.so." >&2
  else
    echo "LibTorch is not installed with Tessera, and TESSERA_LIBTORCH is not set." >&2
  fi
  echo "It must name the folder that holds torch/ of the Python package torch @LIBTORCH_VERSION@ (pip show torch: Location)." >&2
  exit 1
fi
if [ -e "$libtorch/torch/version.py" ] && ! grep -q "^__version__ = '@LIBTORCH_VERSION@" "$libtorch/torch/version.py"; then
  echo "LibTorch in $libtorch is not version @LIBTORCH_VERSION@, with which Tessera was built:" \
    "$(sed -n 's/^__version__ = //p' "$libtorch/torch/version.py")." >&2
  exit 1
fi
LD_LIBRARY_PATH=$libtorch/torch/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export LD_LIBRARY_PATH
exec "$here/../lib/tessera/${0##*/}" "$@"
