-- What the admin page shows of some locks.
--
-- KEYS     for each lock N, {N}:queue
-- Answers  for each lock: {fence, state, holder, since (µs), remaining (ms), waiters}; remaining < 0: no longer held

local answers = {}
for i = 1, #KEYS / 2 do
  local name, queue = KEYS[2 * i - 1], KEYS[2 * i]
  local fence, state, holder, since = unpack(redis.call('HMGET', name, 'fence', 'state', 'holder', 'since'))
  answers[i] = {
    fence or '0', state or '', holder or '', since or '0', redis.call('PTTL', name), redis.call('ZCARD', queue),
  }
end
return answers
