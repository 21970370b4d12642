#!/bin/bash
# health.sh [PATH [PORT]]: whether the server in this container answers 200 there. The image's health check.
path=${1:-/readyz} port=${2:-9090}
exec 2>/dev/null 3<>"/dev/tcp/127.0.0.1/$port" || exit 1
printf 'GET %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n' "$path" >&3
read -r -t 5 _ status _ <&3
[[ $status == 200 ]] || exit 1
