-- What the tasks of each name waited for
select vm, comm, detail as waits_for, count(*) as times, sum(duration_ns) as ns
from task_states where state = 'blocked' group by vm, comm, detail order by ns desc nulls last limit 50
