-- What the admin page shows of some locks.
--
-- KEYS     for each lock N, {N}:queue
-- Answers  for each lock: {fence, state, holder, since (µs), remaining (ms), waiters}; remaining < 0: no longer held

local call = redis.call

local function waiters(queue, owner)
  local count, seen = 0, false
  for _, process in ipairs(call('ZRANGE', queue, '0', '-1')) do
    count = count + call('ZCARD', queue .. ':' .. process)
    seen = seen or process == owner
  end
  return seen and count or count + call('ZCARD', queue .. ':' .. owner) -- those who stand aside: see _queue.lua
end

local answers = {}
for i = 1, #KEYS / 2 do
  local name, queue = KEYS[2 * i - 1], KEYS[2 * i]
  local value = redis.pcall('GET', name)
  local token, state, fence, since, _, holder
  if type(value) == 'string' then
    token, state, fence, since, _, holder = string.match(value, '^(%S+) (%l+) (%d+) (%d+) (%S+) (.*)$')
  end
  if not token or state == 'released' or state == 'revoked' then -- over, or no lock of ours
    answers[i] = {'0', '', '', '0', -1, 0}
  else
    answers[i] = {fence, state == 'contended' and 'held' or state, holder, since, call('PTTL', name), waiters(queue, string.sub(token, 1, 16))}
  end
end
return answers
