-- How often the CPUs of guests and hosts switched tasks, and to whom
select recording, host, vm, layer, next_comm, count(*) as switches from sched.sched_switch
group by recording, host, vm, layer, next_comm
order by switches desc, recording, vm nulls last, layer, next_comm limit 50
