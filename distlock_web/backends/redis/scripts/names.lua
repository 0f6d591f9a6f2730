-- The names of the locks that are held, the one that ends first in front.
--
-- KEYS     1 index
-- Answers  names

local clock = redis.call('TIME')
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', clock[1] * 1000 + math.floor(clock[2] / 1000))
return redis.call('ZRANGE', KEYS[1], 0, -1)
