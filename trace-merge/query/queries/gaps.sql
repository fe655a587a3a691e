-- Where records may be missing, the longest time first
select vm, layer, cpu, vcpu, begin_ns, duration_ns from gaps order by duration_ns desc nulls last limit 50
