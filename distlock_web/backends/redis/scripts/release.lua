-- Give the lock back, and to the next in the queue.
--
-- ARGV     1 token  2 keep (ms): leave it taken for so long, or '0'
-- Answers  0 given back, now or by an earlier copy of this; 1 expired, 2 taken, 3 revoked before

local token, keep = ARGV[1], tonumber(ARGV[2])

local mine = call('HGET', N, 'owner') == token
if mine and keep == 0 and call('EXISTS', QUEUE) == 0 then
  forget(token)
  return 0
end

-- include: _queue

if not mine then
  return call('HGET', FENCE, 'released') == token and 0 or loss(token)
end
if keep > 0 then
  call('HSET', N, 'state', 'kept')
  call('PEXPIRE', N, keep)
  list(clock(), keep)
  local head = call('ZRANGE', QUEUE, 0, 0)[1]
  if head then
    tell(head, '') -- it sleeps for what the lease was, which may be longer: let it ask
  end
else
  let_go(token)
end
return 0
