#!/bin/sh
# Calls rustc for cargo so that what it makes does not depend on where packages lie.
set -eu
# A function of its tests has the folder of its sources in a string.
if [ "${CARGO_PKG_NAME-}" = datafusion-common ]; then
    export CARGO_MANIFEST_DIR="/usr/src/cargo/$CARGO_PKG_NAME-$CARGO_PKG_VERSION"
    exec "$@"
fi
case ${CARGO_MANIFEST_DIR-} in
*/registry/src/*) exec "$@" ;;
esac
# Cargo makes metadata of a package's path unless it lies below the workspace that is built; symbols follow from them, and
# from these the order of what is in the program.
for argument in "$@"; do
    shift
    case $argument in
    metadata=*) argument=metadata=${CARGO_PKG_NAME-}-${CARGO_PKG_VERSION-} ;;
    esac
    set -- "$@" "$argument"
done
exec "$@"
