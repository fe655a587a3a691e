compute() { timeout 5 sh -c 'while :; do :; done'; }
echo guest is up
compute &
compute
wait
sleep 1
