-- Give the lock back, and to the next in the queue.
--
-- ARGV     1 token  2 cooldown (ms): leave it taken for so long, or '0'
--          3 tombstone (ms): how long a late copy of the acquisition may arrive and must do nothing, or '0'
-- Answers  0 given back, now or by an earlier copy of this; 1 expired, 2 taken, 3 revoked before

local token, cooldown, tombstone = ARGV[1], ARGV[2], ARGV[3]

local value = redis.pcall('GET', N)
if cooldown == '0' and tombstone == '0' and type(value) == 'string' and
  string.sub(value, 1, #token + 6) == token .. ' held ' then
  call('DEL', N)
  call('ZREM', INDEX, N)
  return 0
end

-- include: _ending
-- include: _many

if cooldown == '0' and tombstone == '0' and type(value) == 'table' and leaves_many(token) then
  return 0
end
local lock = read(value)
local lost = loss(lock, token)
if lost ~= 0 then
  return told_late(lock, token, lost)
elseif cooldown ~= '0' then
  cool_down(lock, token, tonumber(cooldown))
elseif lock.shares then
  let_go_share(lock, token, 'released', tonumber(tombstone))
else
  let_go(lock, 'released', tonumber(tombstone))
end
return 0
