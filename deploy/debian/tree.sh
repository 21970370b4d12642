#!/usr/bin/env bash
# Lays out the files of the Debian package; CPack calls it (cmake/Package.cmake).
#
#   deploy/debian/tree.sh BUILD ROOT
#
# The programs are a separate tree in /usr/lib/tessera, as in the images, with LibTorch in it. The rest lies where
# Debian's tools look for it. TESSERA_PACKAGE_LIBTORCH=0 leaves LibTorch and the worker out, to inspect the rest.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
build=${1:?a build folder} root=${2:?where the tree shall be}
private=$root/usr/lib/tessera share=$root/usr/share
mkdir -p "$private" "$share"

built_with_libtorch=1
if grep -q "^TESSERA_WITH_LIBTORCH:BOOL=OFF" "$build/CMakeCache.txt"; then built_with_libtorch=0; fi
if [[ ${TESSERA_PACKAGE_LIBTORCH:-$built_with_libtorch} == 1 ]]; then
  "$here/../docker/install.sh" "$build" "$private"
else
  cmake --install "$build" --prefix "$private" --component tessera --strip >/dev/null
  rm -rf "$private/bin/tessera-worker" "$private/lib"
fi
mkdir -p "$root/usr/bin"
ln -s ../lib/tessera/bin/tessera "$root/usr/bin/tessera"

mkdir -p "$share/doc" "$share/zsh"
mv "$private/share/doc/tessera" "$share/doc/tessera"
mv "$private/share/man" "$private/share/bash-completion" "$private/share/fish" "$share/"
mv "$private/share/zsh/site-functions" "$share/zsh/vendor-completions"
rmdir "$private/share/zsh" "$private/share/doc"
gzip -9n "$share"/man/man1/*.1
rm "$share/doc/tessera/LICENSE"  # Debian has the text of the licence once for all
install -m 644 "$here/copyright" "$share/doc/tessera/copyright"
date=$(date -u -R ${SOURCE_DATE_EPOCH:+-d "@$SOURCE_DATE_EPOCH"})
version=$(sed -n 's/^CMAKE_PROJECT_VERSION:STATIC=//p' "$build/CMakeCache.txt")
printf 'tessera (%s) unstable; urgency=medium\n\n  * Built from the sources of this version.\n\n -- %s  %s\n' \
  "$version" "${TESSERA_MAINTAINER:?who answers for the package}" "$date" | gzip -9n >"$share/doc/tessera/changelog.gz"

install -D -m 644 "$here/tessera.yaml" "$root/etc/tessera/tessera.yaml"
install -D -m 644 "$here/tessera.service" "$root/lib/systemd/system/tessera.service"
install -D -m 644 "$here/lintian-overrides" "$share/lintian/overrides/tessera"
find "$root" -type d -empty -delete
find "$root" -type d -exec chmod 755 {} +
find "$root" -type f -perm /111 -exec chmod 755 {} + -o -type f -exec chmod 644 {} +
find "$root/usr/lib/tessera" -name '*.so*' -type f -exec chmod 644 {} +
