-- Some names of the locks that are held, those that end first in front. In parts: the server runs a script alone, and one
-- must not be long.
--
-- KEYS     1 index
-- ARGV     1 go on after this end of a lease (µs), of which 2 so many names are known; '' from the beginning
--          3 how many
-- Answers  how many are held, then name and end (µs), by turns; the end as text, for it is exact

local call = redis.call
local time = call('TIME')
local now = string.format('%d', time[1] * 1000000 + time[2])
local answer = call('ZRANGEBYSCORE', KEYS[1], ARGV[1] == '' and now or ARGV[1], '+inf', 'WITHSCORES', 'LIMIT', ARGV[2], ARGV[3])
table.insert(answer, 1, call('ZCOUNT', KEYS[1], now, '+inf'))
return answer
