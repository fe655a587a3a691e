-- How many records there are of each event type
select layer, event, count(*) as records
from events group by layer, event order by records desc
