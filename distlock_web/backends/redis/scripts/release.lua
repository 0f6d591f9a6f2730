-- Give the lock back, and to the next in the queue.
--
-- ARGV     1 token  2 cooldown (ms): leave it taken for so long, or '0'
-- Answers  0 given back, now or by an earlier copy of this; 1 expired, 2 taken, 3 revoked before

local token, cooldown = ARGV[1], tonumber(ARGV[2])

local mine = call('HGET', N, 'owner') == token
if mine and cooldown == 0 and call('EXISTS', QUEUE) == 0 then
  forget(token)
  return 0
end

-- include: _queue

if not mine then
  return call('HGET', FENCE, 'released') == token and 0 or loss(token)
end
if cooldown > 0 then
  call('HSET', N, 'state', 'cooldown', 'owner', token .. ':cooldown') -- a late renewal must not find its owner
  call('HSET', FENCE, 'released', token)
  call('PEXPIRE', N, cooldown)
  list(clock(), cooldown)
  tell_head()
else
  let_go(token)
end
return 0
