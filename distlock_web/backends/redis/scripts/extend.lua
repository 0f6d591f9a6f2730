-- Give many leases at least their `expire` again, each where it is still its token's.
--
-- KEYS     1 index, then N for each lock
-- ARGV     for each lock: token, expire (ms)
-- Answers  for each lock: 0 extended; 1 expired, 2 taken, 3 revoked

local call, format, index = redis.call, string.format, KEYS[1]
local time = call('TIME')
local now = time[1] * 1000000 + time[2]
local answers, listed, longest = {}, {'ZADD', index}, 0

local function loss(value, token)
  if type(value) ~= 'string' then
    return 1 -- nothing, or an error: a foreign key concerns this lock, not the others
  end
  local owner, state, before = string.match(value, '^(%S+) (%l+) %d+ %d+ (%S+) ')
  local free = state == 'released' or state == 'revoked'
  if owner == token then
    return (state == 'held' or state == 'contended' or state == 'granted') and 0 or state == 'revoked' and 3 or 1
  end
  return string.find(',' .. (before or '') .. ',', ',!' .. token .. ',', 1, true) and 3 or free and 1 or 2
end

-- Of a lock that several hold (see _sharing.lua).
local function extend_share(name, token, expire)
  local share = redis.pcall('HGET', name, token)
  local ends, state, rest = string.match(type(share) == 'string' and share or '', '^(%d+) (%l+) (.*)$')
  if (state == 'held' or state == 'granted') and tonumber(ends) > now then
    call('ZREM', index, '{-}') -- changes nothing, for no name has a brace: a full server allows what follows (see _index.lua)
    call('HSET', name, token, format('%d held %s', math.max(tonumber(ends), now + expire * 1000), rest))
    return 0
  end
  return state == 'revoked' and 3 or 1
end

for i = 2, #KEYS do
  local name, token, expire = KEYS[i], ARGV[2 * i - 3], ARGV[2 * i - 2]
  local value = redis.pcall('GET', name)
  local lost = 0
  if type(value) ~= 'string' or string.sub(value, 1, #token + 6) ~= token .. ' held ' then
    lost = type(value) == 'table' and extend_share(name, token, expire) or loss(value, token)
  end
  if lost == 0 and call('PTTL', name) < tonumber(expire) then
    call('PEXPIRE', name, expire)
    listed[#listed + 1] = format('%d', now + expire * 1000)
    listed[#listed + 1] = name
    longest = math.max(longest, tonumber(expire))
  end
  answers[i - 1] = lost
end
if #listed > 2 then
  call(unpack(listed))
  if call('PTTL', index) < longest + 43200000 then -- it outlives its last use by half a day at least, and all that it lists
    call('PEXPIRE', index, format('%d', longest + 86400000))
  end
end
return answers
