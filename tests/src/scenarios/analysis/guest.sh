mount -t cgroup2 cgroup2 /sys/fs/cgroup
mkdir /sys/fs/cgroup/lab.slice /sys/fs/cgroup/lab.slice/compute.service /sys/fs/cgroup/lab.slice/contained.scope
in_cgroup() {
    sh -c 'echo $$ > "/sys/fs/cgroup$0/cgroup.procs" && exec "$@"' "$@"
}
in_cgroup /lab.slice/compute.service known_load compute 1 8
known_load convoy 4 15 10
known_load reads /dev/vda 25
known_load syscalls
in_cgroup /lab.slice/contained.scope known_load contained 1500
known_load renames 400
