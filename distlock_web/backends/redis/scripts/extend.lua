-- Give many leases at least their `expire` again, each where it is still its token's.
--
-- KEYS     1 index or '', then for each lock N, {N}:fence
-- ARGV     for each lock: token, expire (ms)
-- Answers  for each lock: 0 extended; 1 expired, 2 taken, 3 revoked

local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local answers, longest = {}, 0
for i = 1, #ARGV / 2 do
  local name, fence = KEYS[2 * i], KEYS[2 * i + 1]
  local token, expire = ARGV[2 * i - 1], tonumber(ARGV[2 * i])
  local owner = redis.pcall('HGET', name, 'owner') -- an error (a stranger's key) concerns this lock, not the others
  if owner == token then
    if redis.call('PTTL', name) < expire then
      redis.call('PEXPIRE', name, expire)
      if KEYS[1] ~= '' then
        redis.call('ZADD', KEYS[1], now + expire, name)
        longest = math.max(longest, expire)
      end
    end
    answers[i] = 0
  elseif redis.pcall('HGET', fence, 'revoked') == token then
    answers[i] = 3
  else
    answers[i] = owner and 2 or 1
  end
end
if longest > 0 and redis.call('PTTL', KEYS[1]) < longest then
  redis.call('PEXPIRE', KEYS[1], longest)
end
return answers
