#!/bin/sh
# Draws the icons that phones want as pictures. Run it when public/icon.svg has changed.
set -eu
cd "$(dirname "$0")"
square=$(mktemp -d)/square.svg
# A phone cuts its own shape: these two fill their square to the corners.
sed 's/ rx="8"//' public/icon.svg >"$square"
draw() { npx --yes @resvg/resvg-js-cli@2.6.2-beta.1 --fit-width "$1" "$2" "public/$3"; }
draw 192 public/icon.svg icon-192.png
draw 512 public/icon.svg icon-512.png
draw 512 "$square" icon-maskable-512.png
draw 180 "$square" apple-touch-icon.png
