#!/bin/sh
# Installs mcpproxy: ./install.sh [PREFIX]; PREFIX is /usr/local for root, ~/.local for others.
# PREFIX/share/mcpproxy/uninstall.sh removes everything that was installed.
set -eu
umask 022
here=$(cd "$(dirname "$0")" && pwd)
root=no
[ "$(id -u)" != 0 ] || root=yes
if [ $# -gt 0 ]; then
    mkdir -p "$1"
    prefix=$(cd "$1" && pwd)
elif [ $root = yes ]; then
    prefix=/usr/local
else
    prefix=$HOME/.local
fi
case $prefix in *["
|&\\ %"]*) echo "PREFIX must not contain spaces, '|', '&', '%' or '\\': $prefix" >&2; exit 2 ;; esac
own=$prefix/share/mcpproxy
[ ! -e "$own/files" ] || sh "$own/uninstall.sh" >/dev/null
mkdir -p "$own"
: >"$own/files.new"

put() { # MODE FROM TO
    mkdir -p "$(dirname "$3")"
    cp "$2" "$3.new"
    chmod "$1" "$3.new"
    mv "$3.new" "$3"
    printf '%s\n' "$3" >>"$own/files.new"
}

cd "$here/files"
for file in $(find . -type f | sort); do
    mode=0644
    [ "$file" != ./bin/mcpproxy ] || mode=0755
    put $mode "$file" "$prefix/${file#./}"
done
unit() { # FROM TO
    sed "s|/usr/bin/mcpproxy|$prefix/bin/mcpproxy|" "$here/units/$1" >"$own/unit"
    put 0644 "$own/unit" "$2"
    rm "$own/unit"
}
if [ $root = yes ]; then
    unit system.service "$prefix/lib/systemd/system/mcpproxy.service"
    put 0644 "$here/units/sysusers.conf" "$prefix/lib/sysusers.d/mcpproxy.conf"
else
    unit user.service "$prefix/share/systemd/user/mcpproxy.service"
fi
put 0755 "$here/uninstall.sh" "$own/uninstall.sh"
mv "$own/files.new" "$own/files"

echo "mcpproxy is installed: $prefix/bin/mcpproxy"
case ":$PATH:" in *":$prefix/bin:"*) ;; *) echo "Add $prefix/bin to PATH." ;; esac
if [ $root = yes ]; then
    echo "As a service: systemd-sysusers $prefix/lib/sysusers.d/mcpproxy.conf && systemctl enable --now mcpproxy"
else
    echo "As a service: systemctl --user enable --now mcpproxy"
fi
echo "Remove it with: sh $own/uninstall.sh"
