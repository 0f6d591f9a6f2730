-- Names of what is done, the newest in front. Some of it may have ended meanwhile.
--
-- KEYS     1 index of what is done
-- ARGV     1 how many
-- Answers  name and the µs at which it was done, by turns

return redis.call('ZREVRANGE', KEYS[1], '0', ARGV[1] - 1, 'WITHSCORES')
