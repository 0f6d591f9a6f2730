-- Give many votes at least their `expire` again, each where it is still its token's.
--
-- KEYS     1 index  2 quorum, then N for each lock
-- ARGV     1 who asks, as in QUORUM, then for each lock: token, expire (ms)
-- Answers  for each lock: its fence, extended; 1 expired, 2 taken, 3 revoked. Or {-2, now, QUORUM}: a node of another quorum

local now = clock()
local refused = no_vote(now, ARGV[1])
if refused and refused[1] == -2 then
  return refused
end
local answers = {}
for i = 3, #KEYS do
  N = KEYS[i]
  local token, expire = ARGV[2 * i - 4], tonumber(ARGV[2 * i - 3])
  local known, lock = pcall(read)
  local lost = known and loss(lock, token) or 2 -- a foreign key concerns this lock, not the others
  if lost == 0 and lock.state ~= 'held' then
    lost = 1
  end
  if lost == 0 and call('PTTL', N) < expire then
    call('PEXPIRE', N, expire)
    list(now, expire)
  end
  answers[i - 2] = lost == 0 and tonumber(lock.fence) or lost
end
if #answers > 0 and call('PTTL', INDEX) < DAY / 2 then
  call('PEXPIRE', INDEX, DAY)
end
return answers
