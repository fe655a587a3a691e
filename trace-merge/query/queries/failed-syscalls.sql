-- Which system calls failed, with what, and whose they were
select recording, host, vm, comm, name, result, count(*) as calls
from syscalls where is_error group by recording, host, vm, comm, name, result order by calls desc
