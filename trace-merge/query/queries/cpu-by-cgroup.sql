-- How long the tasks of each cgroup ran, and how long they were ready and did not
select recording, host, vm, cgroup, coalesce(sum(duration_ns) filter (where state = 'running'), 0) as running_ns,
  coalesce(sum(duration_ns) filter (where state in ('runnable', 'runnable_stolen', 'stolen')), 0) as waiting_ns
from task_states group by recording, host, vm, cgroup order by running_ns desc nulls last
