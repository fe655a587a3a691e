echo guest is up
while :; do :; done
