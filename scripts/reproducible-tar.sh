#!/usr/bin/env bash
# Packs FOLDER/NAME into ARCHIVE (.tar.gz) so that equal files give an equal archive: sorted, without owners, every time EPOCH,
# and only the modes 755 and 644.
#
#   scripts/reproducible-tar.sh FOLDER NAME ARCHIVE EPOCH
set -euo pipefail
folder=${1:?a folder} name=${2:?what to pack in it} archive=${3:?the archive} epoch=${4:?seconds since 1970}
level=6
if [[ ${TESSERA_PACKAGE_LIBTORCH:-1} == 0 ]]; then level=1; fi
LC_ALL=C tar -C "$folder" --format=gnu --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$epoch" \
  --mode='u=rwX,go=rX' -cf - "$name" | gzip "-${level}n" >"$archive.part"
mv "$archive.part" "$archive"
