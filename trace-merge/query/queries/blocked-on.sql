-- What the tasks of each name waited for
select recording, host, vm, comm, detail as waits_for, count(*) as times, sum(duration_ns) as ns
from task_states where state = 'blocked'
group by recording, host, vm, comm, detail
order by ns desc nulls last, recording, vm, comm, detail nulls last limit 50
