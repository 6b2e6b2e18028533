#!/bin/sh
# Removes the files that install.sh has installed. Configs, logs and logins are kept; it prints where they are.
set -eu
own=$(cd "$(dirname "$0")" && pwd)
[ -f "$own/files" ] || { echo "no list of installed files in $own" >&2; exit 1; }
while IFS= read -r file; do
    rm -f "$file"
    folder=$(dirname "$file")
    # Folders that become empty are removed as well, up to the first one that is not empty.
    while rmdir "$folder" 2>/dev/null; do folder=$(dirname "$folder"); done
done <"$own/files"
rm -f "$own/files"
folder=$own
while rmdir "$folder" 2>/dev/null; do folder=$(dirname "$folder"); done
echo "mcpproxy is removed."
for folder in "${HOME:-/root}/.mcpproxy" /var/lib/mcpproxy; do
    [ ! -d "$folder" ] || echo "Its config, log and logins stay: rm -r $folder deletes them for good."
done
