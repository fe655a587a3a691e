-- Which processes spent how long in which system calls
select recording, host, vm, pid, comm, name, count(*) as calls, sum(duration_ns) as ns
from syscalls where outcome in ('returned', 'interrupted', 'never-returns')
group by recording, host, vm, pid, comm, name
order by ns desc nulls last, recording, vm, pid nulls last, comm nulls last, name limit 50
