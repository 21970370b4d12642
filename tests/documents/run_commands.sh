#!/bin/sh
# run_commands.sh TESSERA ROOT DOCUMENT…: runs every command that a document shows, as a reader would: in order, in one
# empty folder for each document. A command is an indented line that begins with "tessera", "mkdir", "curl", "export", "eval" or
# "./run-demo.sh" (which is run if the programs are those of its build folder); README.md shows no others. What
# "docker run" runs in a container is run without one ("--detach": as with "&"). A model that
# a clone does not have is written PATH/TO/…; a tiny one of the same layout takes its place, and tests/documents/adapters
# that of PATH/TO/adapters, and tests/golden-inputs/images that of PATH/TO/pictures; model=NAME in a form names it too. A server is started on ports
# that are free and ended with SIGTERM once it listens; one that is started with "&" stays until the next one, and calls of
# curl go to it (it is started again if need be), but for those that name a JOB, an IMAGE or a $SECRET of the reader's. A
# file NAME.png at the end of a line has to be a picture then. "tessera pull" downloads a tiny model of that name from a hub
# of this machine.
set -eu
. "$(dirname "$0")/../support/wait_until.sh"
tessera=$1 root=$2
shift 2
commands='^    (tessera|mkdir|curl|docker run|export|eval|\./run-demo\.sh) '
PATH=$(dirname "$tessera"):$PATH  # as the export that a document shows
count=0
server=
kept=

fail() {
  [ ! -f "$folder/log" ] || cat "$folder/log"
  echo "FAILED: $1"
  exit 1
}

listens_or_ended() { grep -q listening "$folder/listening" 2>/dev/null || ! kill -0 "$server" 2>/dev/null; }

# start_server LINE: until it listens.
start_server() {
  rm -f "$folder/listening"
  (cd "$folder" && eval "exec $1" >listening 2>log) </dev/null &
  server=$!
  wait_until listens_or_ended
  grep -q listening "$folder/listening" || fail "$1"
  url=http://localhost:$(sed 's/.*"http":\([0-9]*\).*/\1/' "$folder/listening")
  admin=localhost:$(sed 's/.*"admin":\([0-9]*\).*/\1/' "$folder/listening")
}

# start_hub NAME: a hub with this model, which ends with this script.
start_hub() {
  local model
  [ -z "${HF_ENDPOINT-}" ] || return 0
  case $1 in
    */Z-Image-Turbo) model=z_image_turbo ;;
    */FLUX.2-klein-4B) model=flux2_klein ;;
    *) fail "$document downloads $1, for which the tests have no small model" ;;
  esac
  mkfifo "$folder/hub.input" "$folder/hub.output"
  python3 "$root/tests/pull/serve_model.py" "$1" "$root/tests/golden-newer/pipelines/$model" <"$folder/hub.input" >"$folder/hub.output" &
  exec 8>"$folder/hub.input" 7<"$folder/hub.output"
  read -r HF_ENDPOINT <&7
  export HF_ENDPOINT
}

end_server() {
  [ -n "$server" ] || return 0
  kill -TERM "$server"
  wait "$server" || fail "the end of a server of $document"
  server=
}

for document in "$@"; do
  folder=$(mktemp -d)
  trap '[ -z "$server" ] || kill -KILL "$server"; rm -rf "$folder"' EXIT
  ln -s "$root/assets" "$folder/assets"
  export XDG_CACHE_HOME="$folder/cache"  # what a command measures of this machine is not the user's
  export XDG_DATA_HOME="$folder/data"    # nor is the key of the user's pictures
  export HF_HOME="$folder/hub"           # nor is the cache of the models
  unset HF_ENDPOINT
  if [ "$document" = README.md ]; then
    unknown=$(sed -e :a -e '/\\$/N; s/\\\n *//; ta' "$root/$document" | grep '^    ' | grep -vE "$commands" || true)
    [ -z "$unknown" ] || { echo "$document shows a command that is not run: $unknown"; exit 1; }
  fi
  sed -e :a -e '/\\$/N; s/\\\n *//; ta' "$root/$document" | grep -E "$commands" | grep -vE '^    curl .*(JOB|IMAGE|SECRET)' |
    sed -E "s/^ *docker run --detach .* tessera:cpu (.*)/    tessera \\1 \&/; s/^ *docker run .* tessera:cpu /    tessera /; s|PATH/TO/adapters|$root/tests/documents/adapters|g; s|PATH/TO/pictures|$root/tests/golden-inputs/images|g; s|PATH/TO/FLUX.2[^ ]*|$root/tests/golden-newer/pipelines/flux2_klein|; s|PATH/TO/FLUX[^ ]*|$root/tests/golden/pipelines/flux_dev|; s|model=FLUX[^ ]*|model=flux_dev|; s|PATH/TO/Qwen-Image-Edit[^ ]*|$root/tests/golden-edit/pipelines/qwen_edit_2511|; s|PATH/TO/[^ ]*|$root/tests/golden/pipelines/pixart_sigma|; s|^ *tessera |\"$tessera\" |; s|^ *curl -s |curl -sS --fail |" >"$folder/commands"
  [ -s "$folder/commands" ] || { echo "$document shows no command"; exit 1; }
  printf '%s\n' 'listen: {http: {port: 0}, grpc: {port: 0}, admin: {port: 0}}' 'groups: [{model: emoji}]' \
    >"$folder/tessera.yaml"
  while IFS= read -r line; do
    echo "$document: $line"
    case $line in
      '"'*'" pull '*) start_hub "$(echo "$line" | sed 's/.*" pull //; s/ .*//')" ;;
      *./run-demo.sh*)
        [ "$tessera" -ef "$root/build/release/bin/tessera" ] || continue
        line=$(echo "$line" | sed "s|^ *\./|\"$root\"/|") ;;
      *' eval '*) line="bash -c '$line'" ;;
    esac
    case $line in
      *--print-config*) serves=0 ;;
      '"'*'" serve'*) serves=1 ;;
      *) serves=0 ;;
    esac
    if [ $serves = 1 ]; then
      end_server
      command=$(echo "$line" | sed 's/ *#.*//; s/ &$//')
      case $command in
        *--model*) command=$(echo "$command" | sed 's/ --port [0-9]*//; s/" serve/" serve --port 0/') ;;
        *) command=$(echo "$command" | sed 's/ --config [^ ]*\.yaml//; s/" serve/" serve --config tessera.yaml/') ;;
      esac
      start_server "$command"
      case $line in
        *' &') kept=$command ;;
        *) end_server ;;
      esac
    else
      case $line in
        *' localhost:8080'* | *http://localhost:8080* | *' localhost:9090'* | *http://localhost:9090*)
          [ -n "$server" ] || { [ -n "$kept" ] && start_server "$kept"; } || fail "$line: no server was left running"
          line=$(echo "$line" | sed "s|http://localhost:8080|$url|; s| localhost:8080| $url|; s|http://localhost:9090|http://$admin|; s| localhost:9090| $admin|") ;;
      esac
      (cd "$folder" && eval "$line") </dev/null || fail "$line"
      case $line in
        *.png)
          head -c 8 "$folder/${line##*[ /]}" | od -An -c | grep -q 'P   N   G' || fail "$line: it makes no picture" ;;
      esac
    fi
    count=$((count + 1))
  done <"$folder/commands"
  end_server
  kept=
  exec 8>&- 7<&-
  rm -rf "$folder"
done
echo "$count commands of $# documents ran"
