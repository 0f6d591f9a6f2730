-- Exchange a transit token for the receiver's own.
--
-- ARGV     1 transit token  2 token  3 expire (ms)  4 holder
-- Answers  the fence, also to a second copy of this; 0 unknown, used by another, or too late

-- include: _queue
-- include: _news

local lock = read()
if not lock then
  return 0
elseif lock.token == ARGV[2] and holds(lock) then
  list(lock, live_at_least(N, ARGV[3])) -- never less: it may have been extended since
  return lock.fence
elseif lock.token ~= ARGV[1] or lock.state ~= 'transit' then
  return 0
end
local known = call('PTTL', N)
lock.token, lock.state, lock.holder = ARGV[2], 'contended', ARGV[4]
write(lock, ARGV[3])
list(lock, ARGV[3])
nudge(known, tonumber(ARGV[3]))
return lock.fence
