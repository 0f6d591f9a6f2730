-- Take the vote from the holder that has this fence here. It learns at its next round trip.
--
-- ARGV     1 fence
-- Answers  1 done, 0 that holder has it no more

local lock = read(call('GET', N))
if not lock or lock.fence ~= ARGV[1] or lock.state == 'revoked' then
  return 0
end
-- The tombstone lives as long as the vote would have: until then its holder may ask, and is told.
lock.state = 'revoked'
call('ZREM', INDEX, N) -- a write that a full server allows: the next one is allowed after it
write(lock, math.max(call('PTTL', N), 5000))
tell()
return 1
