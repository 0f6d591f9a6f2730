-- Give the lock back, and to the next in the queue.
--
-- KEYS     4 with a record: the index of what is done, a sorted set of names by the µs at which that was
-- ARGV     1 token  2 cooldown (ms): leave it taken for so long, or '0'
--          3 tombstone (ms): how long a late copy of the acquisition may arrive and must do nothing, or '0'
--          4 a record, one line: it is done, and whoever asks in the cooldown is told so; left out: it is not
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
  if is_free(lock) then
    hand_over(lock, nil, lock and as_before(lock) or '-')
  end
  local share = lock and lock.shares and lock.shares[token]
  if share then
    return share.state == 'revoked' and 3 or 0
  end
  local done = lock and (was_before(lock, token) or (lock.token == token and lock.state ~= 'revoked'))
  return done and 0 or lost
end
if lock.shares and cooldown == '0' then
  let_go_share(lock, token, 'released', tonumber(ARGV[3]))
elseif lock.shares then
  local known, share = lock, lock.shares[token]
  share.state, share.ends = 'cooldown', clock() + cooldown * 1000
  lock = put(put(lock, token), token, share)
  keep_shares(lock)
  nudge(known, lock)
elseif ARGV[4] then
  lock.state, lock.holder = 'done', lock.holder .. '\n' .. ARGV[4]
  write(lock, cooldown)
  call('ZREM', INDEX, N)
  call('ZADD', KEYS[4], format('%d', clock()), N)
  live_at_least(KEYS[4], cooldown)
  for _, name in ipairs(call('ZRANDMEMBER', KEYS[4], '3')) do -- so that a third of them, at most, has ended
    if redis.pcall('EXISTS', name) == 0 then
      call('ZREM', KEYS[4], name)
    end
  end
  -- All who wait are to ask, and are told so; also those of the owner's process, which may stand aside.
  local processes = call('ZRANGE', QUEUE, '0', '-1')
  processes[#processes + 1] = string.sub(token, 1, 16)
  for _, process in ipairs(processes) do
    local line = QUEUE .. ':' .. process
    for _, entry in ipairs(listens(process) and call('ZRANGE', line, '0', '-1') or {}) do
      tell(process, string.match(entry, '^%S+'), '-', '-')
    end
    call('DEL', line)
  end
  call('DEL', QUEUE)
elseif cooldown == '0' then
  let_go(lock, 'released', tonumber(ARGV[3]))
else
  local known = call('PTTL', N)
  lock.state = 'cooldown'
  write(lock, cooldown)
  list(cooldown)
  set_place(string.sub(token, 1, 16))
  nudge(known, tonumber(cooldown))
end
return 0
