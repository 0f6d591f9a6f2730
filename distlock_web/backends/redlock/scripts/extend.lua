-- Give many votes at least their `expire` again, each where it is still its token's.
--
-- KEYS     1 index  2 quorum, then N for each lock
-- ARGV     1 who asks, as in QUORUM, then for each lock: token, expire (ms)
-- Answers  for each lock: its fence, extended; 1 expired, 2 taken, 3 revoked. Or {-2, now, QUORUM}: a node of another quorum

local now = clock()
local values = call('MGET', unpack(KEYS, 2)) -- of another type than a string is none
local refused = no_vote(now, values[1], ARGV[1])
if refused and refused[1] == -2 then
  return refused
end
local answers, listed, longest = {}, {'ZADD', INDEX}, 0
for i = 3, #KEYS do
  N = KEYS[i]
  local token, expire = ARGV[2 * i - 4], tonumber(ARGV[2 * i - 3])
  local known, lock = pcall(read, values[i - 1])
  local lost = known and loss(lock, token) or 2 -- a foreign key concerns this lock, not the others
  if lost == 0 and lock.state ~= 'held' then
    lost = 1
  elseif not lock and lost == 1 and call('EXISTS', N) == 1 then
    lost = 2 -- a foreign key, too
  end
  if lost == 0 and call('PTTL', N) < expire then
    call('PEXPIRE', N, expire)
    listed[#listed + 1] = format('%d', now + expire * 1000)
    listed[#listed + 1] = N
    longest = math.max(longest, expire)
  end
  answers[i - 2] = lost == 0 and tonumber(lock.fence) or lost
end
if #listed > 2 then
  call(unpack(listed))
  keep_index(longest)
end
return answers
