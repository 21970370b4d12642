#!/bin/sh
# fill-weights.sh FOLDER LIST: fills FOLDER with every file of LIST, each with its digest, or fails with the reason.
#
# LIST is what `sha256sum` writes: a digest and a path below FOLDER in each line; lines that begin with # are not read.
# Files come from $WEIGHTS_URL/PATH. A file with the right digest is kept; an interrupted download continues
# where it ended. FOLDER/.complete exists only if every file does. A token for the source is read from
# $WEIGHTS_TOKEN_FILE, if that exists.
set -eu
folder=$1 list=$2 url=${WEIGHTS_URL%/}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() {
  echo "fill-weights: $1" >&2
  exit 1
}

grep -v -e '^#' -e '^[[:space:]]*$' "$list" >"$work/list" || fail "$list names no file"
if grep -n -v -E '^[0-9a-f]{64} [ *][A-Za-z0-9_+=@][A-Za-z0-9._+=@/-]*$' "$work/list" || grep -n -F '..' "$work/list"; then
  fail "$list has the line above, which is not a SHA-256 digest, two spaces and a path without .. and spaces"
fi

header=
token=${WEIGHTS_TOKEN_FILE:-}
if [ -n "$token" ] && [ -s "$token" ]; then
  (umask 077 && printf 'Authorization: Bearer %s\n' "$(cat "$token")" >"$work/header")
  header=@$work/header  # in a file, so that process lists do not show it
fi

digest_of() { sha256sum "$1" | cut -d ' ' -f 1; }

# download PATH: to FOLDER/PATH.part, from where the last download ended.
download() {
  curl --fail --location --silent --show-error --retry 5 --retry-delay "${WEIGHTS_RETRY_DELAY:-5}" --speed-limit 1024 --speed-time 60 \
    --continue-at - ${header:+--header "$header"} --output "$folder/$1.part" "$url/$1"
}

mkdir -p "$folder"
while read -r digest path; do
  path=${path#\*}
  file=$folder/$path
  if [ -f "$file" ] && [ "$(digest_of "$file")" = "$digest" ]; then
    echo "verified    $path"
    continue
  fi
  rm -f "$folder/.complete"
  mkdir -p "$(dirname "$file")"
  # curl fails for a part that is complete already; the digest decides.
  if [ -f "$file.part" ] && [ "$(digest_of "$file.part")" != "$digest" ]; then
    download "$path" || rm -f "$file.part"
    if [ -f "$file.part" ] && [ "$(digest_of "$file.part")" != "$digest" ]; then
      rm -f "$file.part"  # it was the beginning of another file
    fi
  fi
  if [ ! -f "$file.part" ]; then
    download "$path" || fail "$path cannot be downloaded from $url"
  fi
  found=$(digest_of "$file.part")
  if [ "$found" != "$digest" ]; then
    rm -f "$file.part"
    fail "$path has the digest $found, but the list says $digest"
  fi
  sync
  mv "$file.part" "$file"
  echo "downloaded  $path"
done <"$work/list"
sync
: >"$folder/.complete"
echo "$(wc -l <"$work/list") files are there and verified"
