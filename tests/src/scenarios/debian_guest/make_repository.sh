set -e
rm -rf "$1"
mkdir -p "$1/package/DEBIAN" "$1/package/usr/bin"
cat > "$1/package/DEBIAN/control" << 'END'
Package: lab-greeting
Version: 1.0
Architecture: all
Maintainer: The lab <lab@localhost>
Description: Says that it is installed
END
printf '#!/bin/sh\necho "a greeting of the lab"\n' > "$1/package/usr/bin/lab-greeting"
chmod 755 "$1/package/usr/bin/lab-greeting"
deb="$1/lab-greeting.deb"
dpkg-deb --root-owner-group --build "$1/package" "$deb"
{
    dpkg-deb --field "$deb"
    echo "Filename: ./lab-greeting.deb"
    echo "Size: $(stat -c %s "$deb")"
    echo "SHA256: $(sha256sum "$deb" | cut -d ' ' -f 1)"
} > "$1/Packages"
