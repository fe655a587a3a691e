dmesg | grep strata
echo 'guest is up'
while :; do ls / > /dev/null; sleep 0.1; done
