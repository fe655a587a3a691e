-- How many records there are of each event type
select layer, event, count(*) as records, sum(length(fields)) as bytes_of_fields
from events group by layer, event order by records desc
