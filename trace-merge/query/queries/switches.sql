-- How often the CPUs of guests and hosts switched tasks, and to whom
select vm, layer, next_comm, count(*) as switches from sched.sched_switch
group by vm, layer, next_comm order by switches desc, vm nulls last, layer, next_comm limit 50
