# a vCPU that is halted when the recording begins is unknown until it wakes
taskset 2 sh -c 'while sleep 0.1; do :; done' &
echo guest is up
until dd if=/dev/vda bs=512 count=1 iflag=direct 2> /dev/null | grep -q recorded; do sleep 0.1; done
compute() { taskset "$1" timeout @COMPUTED_SECONDS@ sh -c 'while :; do :; done'; }
compute 1 &
first=$!
compute 2
wait $first
yes '@CHARACTER@' | head -n @TIMES@ | tr -d '\n'
echo
sleep 1
