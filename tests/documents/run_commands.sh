#!/bin/sh
# run_commands.sh TESSERA ROOT DOCUMENT…: runs every command that a document shows, as a reader would: in order, in one
# empty folder for each document. A command is an indented line that begins with "tessera" or "mkdir". A model that a
# clone does not have is written PATH/TO/…; a tiny one of the same layout takes its place. A server is started on ports that
# are free and ended with SIGTERM once it listens.
set -eu
tessera=$1 root=$2
shift 2
count=0
stays=
for document in "$@"; do
  folder=$(mktemp -d)
  trap '[ -z "$stays" ] || kill -KILL "$stays"; rm -rf "$folder"' EXIT
  ln -s "$root/assets" "$folder/assets"
  grep -E '^    (tessera|mkdir) ' "$root/$document" |
    sed -E "s|PATH/TO/FLUX[^ ]*|$root/tests/golden/pipelines/flux_dev|; s|PATH/TO/[^ ]*|$root/tests/golden/pipelines/pixart_sigma|; s|^ *tessera |\"$tessera\" |" >"$folder/commands"
  [ -s "$folder/commands" ] || { echo "$document shows no command"; exit 1; }
  printf '%s\n' 'listen: {http: {port: 0}, grpc: {port: 0}, admin: {port: 0}}' 'groups: [{model: emoji}]' \
    >"$folder/tessera.yaml"
  while IFS= read -r line; do
    echo "$document: $line"
    case $line in
      *--print-config*) serves=0 ;;
      '"'*'" serve'*) serves=1 ;;
      *) serves=0 ;;
    esac
    if [ $serves = 1 ]; then
      keeps=0
      case $line in *' &') keeps=1 ;; esac
      line=$(echo "$line" | sed 's/ &$//; s/ --config tessera.yaml//; s/" serve/" serve --config tessera.yaml/')
      rm -f "$folder/listening"
      (cd "$folder" && eval "exec $line" >listening 2>log) </dev/null &
      server=$!
      tries=0
      until grep -q listening "$folder/listening" 2>/dev/null; do
        tries=$((tries + 1))
        kill -0 $server 2>/dev/null && [ $tries -lt 600 ] || { cat "$folder/log"; echo "FAILED: $line"; exit 1; }
        sleep 0.1
      done
      if [ $keeps = 1 ]; then
        stays=$server
        url=http://localhost:$(sed 's/.*"http":\([0-9]*\).*/\1/' "$folder/listening")
      else
        kill -TERM $server
        wait $server || { cat "$folder/log"; echo "FAILED: $line"; exit 1; }
      fi
    else
      if [ -n "$stays" ]; then line=$(echo "$line" | sed "s|http://localhost:8080|$url|"); fi
      (cd "$folder" && eval "$line") </dev/null || { echo "FAILED: $line"; exit 1; }
    fi
    count=$((count + 1))
  done <"$folder/commands"
  if [ -n "$stays" ]; then
    kill -TERM "$stays"
    wait "$stays" || { cat "$folder/log"; echo "FAILED: the server of $document"; exit 1; }
    stays=
  fi
  rm -rf "$folder"
done
echo "$count commands of $# documents ran"
