-- Give the lock back, and to the next in the queue.
--
-- ARGV     1 token  2 cooldown (ms): leave it taken for so long, or '0'
--          3 tombstone (ms): how long a late copy of the acquisition may arrive and must do nothing, or '0'
-- Answers  0 given back, now or by an earlier copy of this; 1 expired, 2 taken, 3 revoked before

local token, cooldown = ARGV[1], ARGV[2]

local value = redis.pcall('GET', N)
if cooldown == '0' and ARGV[3] == '0' and type(value) == 'string' and
  string.sub(value, 1, #token + 6) == token .. ' held ' then
  call('DEL', N)
  call('ZREM', INDEX, N)
  return 0
end

-- include: _queue

local lock = read(value)
local lost = loss(lock, token)
if lost ~= 0 then
  -- It may have been handed the lock, so that the others of its process stand aside: now it has said something.
  local process = string.sub(token, 1, 16)
  call('ZREM', QUEUE, process) -- a write that a full server allows: what follows is allowed after it
  set_place(process)
  if not lock or lock.state == 'released' or lock.state == 'revoked' then
    hand_over(nil, lock and as_before(lock) or '-')
  end
  local done = lock and (lock.before == token or (lock.token == token and lock.state ~= 'revoked'))
  return done and 0 or lost
end
if cooldown == '0' then
  let_go(lock, 'released', tonumber(ARGV[3]))
else
  local known = call('PTTL', N)
  lock.state = 'cooldown'
  write(lock, cooldown)
  list()
  set_place(string.sub(token, 1, 16))
  nudge(known, tonumber(cooldown))
end
return 0
