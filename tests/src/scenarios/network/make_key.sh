set -e
rm -f "$1"
dropbearkey -t ed25519 -f "$1"
dropbearkey -y -f "$1" | grep ^ssh- > "$1.pub"
