-- Which ports and device pages the guest had the VMM serve
select vm, place, reason, count(*) as exits, sum(vmm_ns) as vmm_ns
from exits where place is not null group by vm, place, reason order by vmm_ns desc nulls last
