-- Which processes spent how long in which system calls
select vm, pid, comm, name, count(*) as calls, sum(duration_ns) as ns
from syscalls group by vm, pid, comm, name order by ns desc nulls last limit 50
