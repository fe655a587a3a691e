-- Which tasks recorded most
select recording, host, vm, layer, pid, tid, comm, count(*) as records from events
group by recording, host, vm, layer, pid, tid, comm
order by records desc, recording, vm nulls last, layer, pid nulls last, tid nulls last, comm nulls last limit 50
