-- Which system calls took how long, and how many failed
select recording, host, vm, name, count(*) as calls, sum(duration_ns) as ns, sum(cpu_ns) as cpu_ns,
  max(duration_ns) as longest_ns, count(*) filter (where is_error) as errors
from syscalls where outcome in ('returned', 'interrupted', 'never-returns')
group by recording, host, vm, name order by ns desc nulls last
