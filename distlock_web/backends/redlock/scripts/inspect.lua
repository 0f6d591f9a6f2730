-- What the admin page shows of some locks.
--
-- KEYS     1 index  2 quorum, then N for each lock
-- Answers  for each lock: {fence, state, holder, since (µs), remaining (ms), waiters, ''}; remaining < 0: no longer held

local call = redis.call
local time = call('TIME')
local now = string.format('%d', time[1] * 1000000 + time[2])
local answers = {}
for i = 3, #KEYS do
  local name, value = KEYS[i], redis.pcall('GET', KEYS[i])
  local waiters = call('ZCOUNT', '{' .. name .. '}:waiting', now, '+inf')
  local state, fence, since, holder
  if type(value) == 'string' then
    state, fence, since, holder = string.match(value, '^%S+ (%l+) (%d+) (%d+) %S+ (.*)$')
  end
  if not state or state == 'revoked' or #fence > 16 or #since > 16 then -- over, or not ours
    answers[#answers + 1] = {'0', '', '', '0', -1, waiters, ''}
  else
    answers[#answers + 1] = {fence, state, holder, since, call('PTTL', name), waiters, ''}
  end
end
return answers
