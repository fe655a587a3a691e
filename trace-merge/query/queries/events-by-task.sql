-- Which tasks recorded most
select vm, layer, pid, tid, comm, count(*) as records from events
group by vm, layer, pid, tid, comm
order by records desc, vm nulls last, layer, pid nulls last, tid nulls last, comm nulls last limit 50
