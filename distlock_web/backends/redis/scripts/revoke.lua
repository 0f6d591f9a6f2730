-- Take the lock from the holder that has this fence. It learns at its next round trip.
--
-- ARGV     1 fence
-- Answers  1 done, 0 that holder has it no more

-- include: _queue

local owner, fence = unpack(call('HMGET', N, 'owner', 'fence'))
if not owner or fence ~= ARGV[1] then
  return 0
end
call('HSET', FENCE, 'revoked', owner)
let_go(owner)
call('HDEL', FENCE, 'released')
return 1
