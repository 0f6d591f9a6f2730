-- The names of the locks that are held, the one that ends first in front.
--
-- KEYS     1 index
-- Answers  names

local time = redis.call('TIME')
return redis.call('ZRANGEBYSCORE', KEYS[1], string.format('%d', time[1] * 1000000 + time[2]), '+inf')
