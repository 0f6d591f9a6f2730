-- Exchange the owner for a transit token.
--
-- ARGV     1 token  2 transit token  3 its lifetime (ms)
-- Answers  0 done, now or by an earlier copy of this; 1 expired, 2 taken, 3 revoked

-- include: _queue
-- include: _news

local lock = read()
if lock and lock.token == ARGV[2] then
  return 0
end
local lost = loss(lock, ARGV[1])
if lost == 0 then
  local known = known_to_others(lock)
  lock.token, lock.state = ARGV[2], 'transit'
  write(lock, ARGV[3])
  list(lock, ARGV[3])
  if known then
    set_place(string.sub(ARGV[1], 1, 16))
    nudge(known, tonumber(ARGV[3]))
  end
end
return lost
