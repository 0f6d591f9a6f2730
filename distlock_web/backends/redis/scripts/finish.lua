-- Give the lock back as done: the record is kept under its name, and all who wait are told so. Never one of several.
--
-- KEYS     4 the index of what is done, a sorted set of names by the µs at which that was
-- ARGV     1 token  2 for how long it is done (ms)  3 the record, one line
-- Answers  0 done, now or by an earlier copy of this; 1 expired, 2 taken, 3 revoked before

-- include: _ending

local token, ms, record, DONE = ARGV[1], ARGV[2], ARGV[3], KEYS[4]
local lock = read()
local lost = loss(lock, token)
if lost ~= 0 then
  return told_late(lock, token, lost)
end
local alone = lock.state == 'held' -- else a claim may wait
lock.state, lock.holder = 'done', lock.holder .. '\n' .. record
allow_writes('ZREM', INDEX, N)
rewrite(lock, ms)
call('ZADD', DONE, format('%d', clock()), N)
live_at_least(DONE, ms)
for _, name in ipairs(call('ZRANDMEMBER', DONE, '3')) do -- so that a third of them, at most, has ended
  if redis.pcall('EXISTS', name) == 0 then
    call('ZREM', DONE, name)
  end
end
if alone then
  return 0
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
return 0
